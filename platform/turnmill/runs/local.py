"""A run on this machine: a Ray cluster of its own, supervision, and removal of everything it leaves."""

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from turnmill.core.errors import RunFailedError
from turnmill.core.process_mark import NO_MARK, PROCESS_MARK
from turnmill.jobs import AgentTrainingJob
from turnmill.observability import atomic_files, logs
from turnmill.observability.progress import Progress, write_progress
from turnmill.observability.run_folder import RunFolder
from turnmill.runs import processes
from turnmill.runs.fine_tuning import fine_tuned
from turnmill.runs.fork_server import PythonForkServer, modules
from turnmill.runs.fork_server.launcher import INTERPRETER
from turnmill.runs.infrastructure import Infrastructure
from turnmill.runs.preparation import (
    ensure_model,
    ensure_reward_model,
    finalize_run,
    prepare,
    process_environment,
    resolve_device,
    rewind,
)
from turnmill.runs.ray_cluster import RAY, parent_of_sockets
from turnmill.runs.server_process import require_access
from turnmill.runs.still_processes import still_processes_killed
from turnmill.runs.watch import Report, folder_failure, start_silence, watch
from turnmill.training import accelerators
from turnmill.training.recorder import ATTEMPT

# Ray may take a moment to offer this machine's resources; missing ones never appear.
LOCAL_DEVICES_SECONDS = 10.0
RAY_RETRIES = 3
ROOM_SECONDS = 1.0

log = logging.getLogger(__name__)


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
                with _imports_kept(job, device, owner):
                    infrastructure = Infrastructure(job, folder, device, owner)
                    train = partial(_train, job, model, reward_model, folder, device, infrastructure, owner, report)
                    with closing(infrastructure):
                        _with_retries(train, infrastructure.clear, job, folder)
        finally:
            logs.close()
    return RunResult(folder.path, folder.read_summary())


def _with_retries(
    train: Callable[[bool], None], clear: Callable[[], None], job: AgentTrainingJob, folder: RunFolder
) -> None:
    """Train; after a failure that another attempt may get past, resume from the last checkpoint.

    `train` is given whether another attempt would follow a failure; `clear` ends what is left of one. Ray must start
    within 30 s, which may be too short on a busy machine; such a failure does not count as one of the job's retries.
    """
    failed = not_started = 0
    while True:
        # In a cluster the operator sets it.
        os.environ[ATTEMPT] = str(failed + not_started + 1)
        try:
            with _full_disk_fails_the_attempt():
                if failed or not_started:
                    _start_over(clear, folder, job)
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
    folder = Path(tempfile.mkdtemp(prefix="turnmill-imports-", dir=parent_of_sockets()))
    owner.remember_folder(folder)
    os.environ.update(process_environment(device) | {PROCESS_MARK: NO_MARK})
    server = PythonForkServer(folder, modules.EARLY, ())
    os.environ.update({PROCESS_MARK: owner.mark, INTERPRETER: str(server.python)})
    try:
        yield
    finally:
        del os.environ[INTERPRETER]
        server.close()


def _start_over(clear: Callable[[], None], folder: RunFolder, job: AgentTrainingJob) -> None:
    """Remove what is left of an attempt, and go back to the last checkpoint; wait for room on the disk."""
    clear()
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
    infrastructure: Infrastructure,
    owner: processes.Owner,
    report: Report,
    can_retry: bool,
) -> None:
    folder.allow_silence(start_silence(job))
    # Also in the file, from which the end of the warm start would otherwise be shown again.
    starting = Progress(phase="starting")
    write_progress(folder, starting)
    report(starting)
    running = infrastructure.start()
    with still_processes_killed(job, owner.mark, can_retry=can_retry, node=infrastructure.node):
        import ray

        accelerators.require(job, wait_seconds=LOCAL_DEVICES_SECONDS)
        from turnmill.runs.task_runner import TurnTaskRunner

        model = fine_tuned(job, model, folder, device, report, start=TurnTaskRunner.remote)  # type: ignore[attr-defined]
        runner = TurnTaskRunner.remote()  # type: ignore[attr-defined]
        text, rewards = job.model_dump_json(by_alias=True), None if reward_model is None else str(reward_model)
        # The tool server has been starting beside Ray.
        running.wait()
        attempt = int(os.environ[ATTEMPT])
        future = runner.run.remote(text, str(model), rewards, str(folder.path), device, running.addresses, attempt)
        watch(future, job, folder, report)
        ray.kill(runner)
