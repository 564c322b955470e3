"""A Ray cluster on this machine, for one run only."""

import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from turnmill.core.errors import RunFailedError
from turnmill.jobs import AgentTrainingJob
from turnmill.observability.run_folder import VARIABLE, RunFolder
from turnmill.runs import processes
from turnmill.runs.fork_server import PythonForkServer, modules
from turnmill.runs.preparation import process_environment, runtime_env
from turnmill.training import accelerators

RAY = "ray"
"""Cause of the failure of a run whose Ray does not start."""

SETUP_WORKER = Path(__file__).with_name("setup_worker.py")
TEMPORARY = "tmp"
# A socket's path has at most 107; `/turnmill-ray-...`, `/session_...` and `/sockets/plasma_store` take 89.
MAX_TEMPORARY_CHARACTERS = 18

PATIENCE = {"RAY_gcs_rpc_server_reconnect_timeout_s": str(10**9)}
"""Without it Ray ends this process a minute after the controller has died, without a word, if a request waited for the
controller then, even if Ray has been started again since. Whoever plays an attempt looks at the controller."""

log = logging.getLogger(__name__)
_Handler = Callable[[int, FrameType | None], object] | int | None


@dataclass(frozen=True, slots=True)
class RayCluster:
    """A Ray cluster on this machine."""

    temp_dir: Path
    fork_server: PythonForkServer | None

    def keep_logs(self, folder: RunFolder) -> None:
        """Copy the logs of Ray's workers to the run folder, as the session is deleted."""
        try:
            _copy_logs(self.temp_dir, folder)
        except OSError as error:
            log.warning("Logs of Ray's workers could not be kept", extra={"error": str(error)})


@contextmanager
def ray_cluster(job: AgentTrainingJob, device: str, owner: processes.Owner, folder: RunFolder) -> Iterator[RayCluster]:
    """Run a Ray cluster on this machine, for this run only, while the context lasts."""
    temp_dir = Path(tempfile.mkdtemp(prefix="turnmill-ray-", dir=parent_of_sockets()))
    owner.remember_folder(temp_dir)
    (temp_dir / TEMPORARY).mkdir()
    environment = process_environment(device) | {VARIABLE: str(folder.path)}
    # Else Ray ends this process with its node, without a word, where the process that started it has ended.
    os.environ.update(environment | PATIENCE | {"RAY_RAYLET_PID": str(os.getpid())})
    fork_server = PythonForkServer(temp_dir, modules.EARLY, modules.LATE) if device == "cpu" else None
    import ray

    cluster = RayCluster(temp_dir, fork_server)
    try:
        _start_ray(job, device, environment, temp_dir, fork_server)
        yield cluster
    finally:
        ray.shutdown()
        if fork_server:
            fork_server.close()
        cluster.keep_logs(folder)


def parent_of_sockets() -> str:
    """Return the temporary folder, or a shorter path if Ray's socket paths below it would be too long."""
    given = tempfile.gettempdir()
    return given if len(given) <= MAX_TEMPORARY_CHARACTERS else "/tmp"


def _start_ray(
    job: AgentTrainingJob,
    device: str,
    environment: Mapping[str, str],
    temp_dir: Path,
    fork_server: PythonForkServer | None,
) -> None:
    import ray

    from turnmill.training.verl.patches import worker_setup

    # It reports that this cluster requires a token, as intended.
    logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel(logging.ERROR)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with worker_setup.applied(SETUP_WORKER):
            ray.init(
                address="local",
                # Without GPUs, verl still counts them for placement: a logical resource, one per training process.
                **accelerators.local_resources(job, logical_gpus=device == "cpu", cpus=os.cpu_count() or 1),
                include_dashboard=False,
                # It would start workers without the variables of the run's, which none of them could use.
                _system_config={"prestart_worker_first_driver": False},
                log_to_driver=False,
                configure_logging=False,
                object_store_memory=256 * 1024**2 if device == "cpu" else None,
                _temp_dir=str(temp_dir),
                runtime_env=runtime_env(
                    environment, [str(fork_server.python)] if fork_server else [], temp_dir / TEMPORARY
                ),
            )
    except Exception as error:
        # A plain Exception if the machine is too busy for Ray to start in time.
        raise RunFailedError(
            f"Ray did not start: {str(error).strip()} Try again; if it fails again, free memory, disk or ports.",
            RAY,
        ) from error
    finally:
        # Ray installs a handler of SIGTERM that prints a traceback.
        if threading.current_thread() is threading.main_thread():
            _restore(handlers)


def _restore(handlers: Mapping[signal.Signals, _Handler]) -> None:
    for number, handler in handlers.items():
        # A signal that is now ignored has ended the run, and must not disturb the clean-up.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _copy_logs(temp_dir: Path, folder: RunFolder) -> None:
    target = folder.logs / "ray"
    if (fork_server_log := temp_dir / "fork_server.log").exists():
        shutil.copyfile(fork_server_log, folder.logs / fork_server_log.name)
    for file in temp_dir.glob("session_2*/logs/worker-*"):
        if file.stat().st_size:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / file.name)
