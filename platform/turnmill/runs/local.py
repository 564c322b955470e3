"""A run on this machine: a Ray cluster of its own, supervision, and removal of everything it leaves."""

import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from turnmill.core.errors import RunFailedError
from turnmill.core.process_mark import NO_MARK, PROCESS_MARK
from turnmill.jobs import AgentTrainingJob
from turnmill.observability import atomic_files, logs
from turnmill.observability.progress import Progress, write_progress
from turnmill.observability.run_folder import VARIABLE, RunFolder
from turnmill.runs import processes
from turnmill.runs.fine_tuning import fine_tuned
from turnmill.runs.fork_server import PythonForkServer, modules
from turnmill.runs.fork_server.launcher import INTERPRETER
from turnmill.runs.preparation import (
    ensure_model,
    ensure_reward_model,
    finalize_run,
    prepare,
    process_environment,
    resolve_device,
    rewind,
    runtime_env,
)
from turnmill.runs.server_process import require_access
from turnmill.runs.services import services
from turnmill.runs.still_processes import still_processes_killed
from turnmill.runs.watch import Report, folder_failure, start_silence, watch
from turnmill.training import accelerators
from turnmill.training.recorder import ATTEMPT

# Ray may take a moment to offer this machine's resources; missing ones never appear.
LOCAL_DEVICES_SECONDS = 10.0
RAY = "ray"
RAY_RETRIES = 3
ROOM_SECONDS = 1.0
TEMPORARY = "tmp"
# A socket's path has at most 107; `/turnmill-ray-...`, `/session_...` and `/sockets/plasma_store` take 89.
MAX_TEMPORARY_CHARACTERS = 18

log = logging.getLogger(__name__)
_Handler = Callable[[int, FrameType | None], object] | int | None


@dataclass(frozen=True, slots=True)
class RunResult:
    """Folder and summary of a finished run."""

    folder: Path
    summary: dict[str, object]


def launch(
    job: AgentTrainingJob, run_dir: Path, *, resume: bool = False, on_progress: Report | None = None
) -> RunResult:
    """Train a job to its last step.

    Raises RunFailedError with a cause, SettingsError for settings that do not work on this machine, and lets
    KeyboardInterrupt through. In every case, the run's processes, shared memory and Ray files are removed.
    """
    report = on_progress or (lambda _: None)
    folder = RunFolder(run_dir.absolute())
    device = resolve_device(job.spec.resources.device)
    with processes.owned(folder.path) as owner:
        logs.configure(folder, process="launch", level=logging.WARNING)
        try:
            prepare(folder, job, resume=resume)
            with finalize_run(folder):
                require_access(getattr(job.spec.agent, "tool_server_url", None))
                model = ensure_model(job, folder, report)
                reward_model = ensure_reward_model(job, report)
                train = partial(_train, job, model, reward_model, folder, device, owner, report)
                with _imports_kept(job, device, owner):
                    _with_retries(train, job, folder, owner)
        finally:
            logs.close()
    return RunResult(folder.path, folder.read_summary())


def _with_retries(
    train: Callable[[bool], None], job: AgentTrainingJob, folder: RunFolder, owner: processes.Owner
) -> None:
    """Train; after a failure that another attempt may get past, resume from the last checkpoint.

    `train` is given whether another attempt would follow a failure. Ray must start within 30 s, which may be too short
    on a busy machine; such a failure does not count as one of the job's retries.
    """
    failed = not_started = 0
    while True:
        # The trainer's process inherits it; in a cluster the operator sets it.
        os.environ[ATTEMPT] = str(failed + not_started + 1)
        try:
            with _full_disk_fails_the_attempt():
                if failed or not_started:
                    _start_over(folder, job, owner)
                train(failed < (job.spec.retries or 0))
        except RunFailedError as error:
            failed += error.cause != RAY
            not_started += error.cause == RAY
            if error.is_final or failed > (job.spec.retries or 0) or not_started > RAY_RETRIES:
                raise
            log.warning("Run failed and is tried again", extra={"attempt": failed + not_started, "what": str(error)})
        else:
            return


@contextmanager
def _imports_kept(job: AgentTrainingJob, device: str, owner: processes.Owner) -> Iterator[None]:
    """Import once what does not depend on Ray: fork servers of attempts are forks of one that outlives them."""
    if device != "cpu" or not job.spec.retries or INTERPRETER in os.environ:
        yield
        return
    folder = Path(tempfile.mkdtemp(prefix="turnmill-imports-", dir=_parent_of_sockets()))
    owner.remember_folder(folder)
    os.environ.update(process_environment(device) | {PROCESS_MARK: NO_MARK})
    server = PythonForkServer(folder, modules.EARLY, ())
    os.environ.update({PROCESS_MARK: owner.mark, INTERPRETER: str(server.python)})
    try:
        yield
    finally:
        del os.environ[INTERPRETER]
        server.close()


def _start_over(folder: RunFolder, job: AgentTrainingJob, owner: processes.Owner) -> None:
    """Remove what is left of an attempt, and go back to the last checkpoint; wait for room on the disk."""
    processes.terminate_marked(owner.mark)
    deadline = time.monotonic() + job.spec.training.stall_timeout_seconds
    while (problem := folder.write_problem()) is not None:
        if time.monotonic() >= deadline:
            raise folder_failure(folder, problem)
        time.sleep(ROOM_SECONDS)
    folder.failure.unlink(missing_ok=True)
    rewind(folder, job)


@contextmanager
def _full_disk_fails_the_attempt() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in atomic_files.FULL:
            raise
        # It may be that of the temporary folder.
        raise RunFailedError(
            f"A disk of the run is full: {error}. Free some space; `--resume` carries on from the last checkpoint.",
            "run_folder",
        ) from error


def _train(
    job: AgentTrainingJob,
    model: Path,
    reward_model: Path | None,
    folder: RunFolder,
    device: str,
    owner: processes.Owner,
    report: Report,
    can_retry: bool,
) -> None:
    folder.allow_silence(start_silence(job))
    # Also in the file, from which the end of the warm start would otherwise be shown again.
    starting = Progress(phase="starting")
    write_progress(folder, starting)
    report(starting)
    # For this attempt only: the next one first removes everything that is left of it.
    with (
        services(job, folder, owner) as running,
        _ray_cluster(job, device, owner, folder),
        still_processes_killed(job, owner.mark, can_retry=can_retry),
    ):
        import ray

        accelerators.require(job, wait_seconds=LOCAL_DEVICES_SECONDS)
        from turnmill.runs.task_runner import TurnTaskRunner

        model = fine_tuned(job, model, folder, device, report, start=TurnTaskRunner.remote)  # type: ignore[attr-defined]
        runner = TurnTaskRunner.remote()  # type: ignore[attr-defined]
        text, rewards = job.model_dump_json(by_alias=True), None if reward_model is None else str(reward_model)
        # The tool server has been starting beside Ray.
        running.wait()
        future = runner.run.remote(text, str(model), rewards, str(folder.path), device, running.addresses)
        watch(future, job, folder, report)
        ray.kill(runner)


@contextmanager
def _ray_cluster(job: AgentTrainingJob, device: str, owner: processes.Owner, folder: RunFolder) -> Iterator[None]:
    """Run a Ray cluster on this machine, for this run only, while the context lasts."""
    temp_dir = Path(tempfile.mkdtemp(prefix="turnmill-ray-", dir=_parent_of_sockets()))
    owner.remember_folder(temp_dir)
    (temp_dir / TEMPORARY).mkdir()
    environment = process_environment(device) | {VARIABLE: str(folder.path)}
    os.environ.update(environment)
    fork_server = PythonForkServer(temp_dir, modules.EARLY, modules.LATE) if device == "cpu" else None
    import ray

    try:
        _start_ray(job, device, environment, temp_dir, fork_server)
        yield
    finally:
        ray.shutdown()
        if fork_server:
            fork_server.close()
        try:
            _keep_logs(temp_dir, folder)
        except OSError as error:
            log.warning("Logs of Ray's workers could not be kept", extra={"error": str(error)})


def _parent_of_sockets() -> str:
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

    # It reports that this cluster requires a token, as intended.
    logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel(logging.ERROR)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(
            address="local",
            # Without GPUs, verl still counts them for placement: a logical resource, one per training process.
            **accelerators.local_resources(job, logical_gpus=device == "cpu", cpus=os.cpu_count() or 1),
            include_dashboard=False,
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


def _keep_logs(temp_dir: Path, folder: RunFolder) -> None:
    """Copy the logs of Ray's workers to the run folder, as the session is deleted."""
    target = folder.logs / "ray"
    if (fork_server_log := temp_dir / "fork_server.log").exists():
        shutil.copyfile(fork_server_log, folder.logs / fork_server_log.name)
    for file in temp_dir.glob("session_2*/logs/worker-*"):
        if file.stat().st_size:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / file.name)
