"""Runs a job on this machine: a Ray cluster of its own, a watchdog over it, and nothing left behind."""

import logging
import os
import shlex
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from turnmill.core.errors import RunFailedError, SettingsError, TurnmillError
from turnmill.jobs import AgentTrainingJob
from turnmill.observability import logs
from turnmill.observability.progress import Progress, read_progress, write_progress
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog
from turnmill.training import processes
from turnmill.training.services import services
from turnmill.training.zygote import Zygote

POLL_SECONDS = 0.25
# Another try would end the same way.
FINAL_CAUSES = frozenset({"settings", "failed_ratio", "environment"})
# What the processes of a run import; on a GPU they start one by one, since CUDA does not outlive a fork.
ZYGOTE_MODULES = ("torch", "transformers", "tensordict", "vllm.entrypoints.openai.api_server")
ZYGOTE_MODULES_WITH_RAY = (
    "turnmill.training.trainer",
    "turnmill.rollout.manager",
    "turnmill.rollout.turn_loop",
    "turnmill.rollout.tool_agent.manager",
    "turnmill.training.trajectory_trainer",
    "turnmill.training.verl_cpu.workers",
    "turnmill.training.verl_cpu.vllm_worker",
    "verl.workers.rollout.vllm_rollout.vllm_async_server",
    "vllm.v1.worker.cpu_worker",
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a finished run came to."""

    folder: Path
    summary: dict[str, Any]


def launch(
    job: AgentTrainingJob, run_dir: Path, *, resume: bool = False, on_progress: Callable[[Progress], None] | None = None
) -> RunResult:
    """Train a job to its last step.

    Raises RunFailedError with a cause, SettingsError for what only shows on this machine, and lets KeyboardInterrupt
    through; in every case all processes, shared memory and Ray's files of this run are gone.
    """
    report = on_progress or (lambda _: None)
    folder = RunFolder(run_dir.absolute())
    device = resolve_device(job.spec.resources.device)
    with processes.owned(folder.path) as owner:
        _prepare(folder, job, resume=resume)
        logs.configure(folder, process="launch", level=logging.WARNING)
        try:
            model = _model(job, folder, report)
            train = partial(_train, job, model, folder, device, owner, report)
            _with_retries(train, job.spec.retries, folder, owner)
        finally:
            logs.close()
            _finish(folder)
    return RunResult(folder.path, folder.read_summary())


def resolve_device(device: str) -> str:
    """`auto` is CUDA where the driver shows a GPU; raises SettingsError for CUDA where there is none."""
    has_gpu = Path("/dev/nvidiactl").exists() or Path("/dev/nvidia0").exists()
    if device == "cuda" and not has_gpu:
        raise SettingsError(
            "spec.resources.device: cuda, but this machine shows no GPU (no /dev/nvidia0). Use cpu or auto."
        )
    if device == "auto":
        return "cuda" if has_gpu else "cpu"
    return device


def _prepare(folder: RunFolder, job: AgentTrainingJob, *, resume: bool) -> None:
    folder.create()
    if resume:
        _rewind(folder)
    folder.write_job(yaml.safe_dump(job.model_dump(by_alias=True, mode="json"), sort_keys=False))


def _rewind(folder: RunFolder) -> None:
    """Forget what came after the last complete checkpoint."""
    from turnmill.training import checkpoints

    checkpoints.discard_incomplete(folder.checkpoints)
    newest = checkpoints.latest(folder.checkpoints)
    step = newest.state.step if newest else -1
    folder.truncate_after(step)
    TrajectoryLog(folder).rewind(step)


def _model(job: AgentTrainingJob, folder: RunFolder, report: Callable[[Progress], None]) -> Path:
    spec = job.spec
    if spec.model.path is not None:
        return Path(spec.model.path)
    from turnmill.training.warm_start import ensure_warm_start

    assert spec.model.warm_start is not None

    def tell(done: int, total: int, loss: float) -> None:
        folder.beat()
        progress = Progress(phase="warm start", done=done, total=total, message=f"loss {loss:.3f}")
        write_progress(folder, progress)
        report(progress)

    return ensure_warm_start(
        spec.model.warm_start,
        environment=spec.environment,
        max_turns=spec.agent.max_turns,
        tasks=spec.agent.type == "tool",
        on_progress=tell,
    )


def _with_retries(train: Callable[[], None], retries: int, folder: RunFolder, owner: processes.Owner) -> None:
    """Train; after a failure that another try may get past, go on from the last checkpoint."""
    for attempt in range(retries + 1):
        try:
            train()
        except RunFailedError as error:
            if error.cause in FINAL_CAUSES or attempt == retries:
                raise
            log.warning("Run failed and is tried again", extra={"attempt": attempt + 1, "what": str(error)})
            processes.end_marked(owner.mark)
            folder.failure.unlink(missing_ok=True)
            _rewind(folder)
        else:
            return


def _train(
    job: AgentTrainingJob,
    model: Path,
    folder: RunFolder,
    device: str,
    owner: processes.Owner,
    report: Callable[[Progress], None],
) -> None:
    folder.beat()
    # In the file too: the end of the warm start would be read from it, and shown, once more.
    starting = Progress(phase="starting")
    write_progress(folder, starting)
    report(starting)
    # Of this attempt alone: the next one begins by ending whatever is left of it.
    with services(job, folder) as addresses, _ray_cluster(job, device, owner, folder):
        import ray

        from turnmill.training.task_runner import TurnTaskRunner

        runner = TurnTaskRunner.remote()  # type: ignore[attr-defined]
        future = runner.run.remote(job.model_dump_json(by_alias=True), str(model), str(folder.path), device, addresses)
        _watch(future, job, folder, report)
        ray.kill(runner)


def _watch(future: Any, job: AgentTrainingJob, folder: RunFolder, report: Callable[[Progress], None]) -> None:
    """Wait for the run, show how it goes, and end it if nothing goes any more."""
    import ray

    shown: Progress | None = None
    stall_timeout = job.spec.training.stall_timeout_seconds
    while True:
        ready, _ = ray.wait([future], timeout=POLL_SECONDS)
        progress = read_progress(folder)
        if progress is not None and progress != shown:
            report(progress)
            shown = progress
        if ready:
            _result(future, folder)
            return
        if (failure := folder.read_failure()) is not None:
            raise failure
        if (silent := folder.seconds_since_progress()) > stall_timeout:
            raise RunFailedError(
                f"Nothing progressed for {silent:.0f} s (training.stallTimeoutSeconds is {stall_timeout:g}) "
                f"in phase {progress.phase if progress else 'starting'!r}. See {folder.logs}; "
                "`--resume` carries on from the last checkpoint.",
                "stalled",
            )


def _result(future: Any, folder: RunFolder) -> None:
    import ray

    try:
        ray.get(future)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, RunFailedError):
            raise cause from None
        if isinstance(cause, TurnmillError):
            raise RunFailedError(str(cause), "settings") from None
        last_line = str(error).strip().rsplit("\n", 1)[-1]
        raise RunFailedError(f"{last_line} (whole traceback in {folder.logs})", "trainer") from error
    except ray.exceptions.RayError as error:
        raise RunFailedError(
            f"The trainer's process died: {str(error).strip().splitlines()[0]} See {folder.logs}; "
            "`--resume` carries on from the last checkpoint.",
            "trainer_died",
        ) from error


@contextmanager
def _ray_cluster(job: AgentTrainingJob, device: str, owner: processes.Owner, folder: RunFolder) -> Iterator[None]:
    """A Ray cluster on this machine for this run alone."""
    temp_dir = Path(tempfile.mkdtemp(prefix="turnmill-ray-"))
    owner.remember_folder(temp_dir)
    os.environ.update(_environment(device))
    zygote = Zygote(temp_dir, ZYGOTE_MODULES, ZYGOTE_MODULES_WITH_RAY) if device == "cpu" else None
    import ray

    try:
        _start_ray(job, device, temp_dir, zygote)
        yield
    finally:
        ray.shutdown()
        if zygote:
            zygote.close()
        _keep_logs(temp_dir, folder)


def _start_ray(job: AgentTrainingJob, device: str, temp_dir: Path, zygote: Zygote | None) -> None:
    import ray

    # It tells that this cluster wants a token, which is as it should be.
    logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel(logging.ERROR)
    runtime_env: dict[str, Any] = {"env_vars": _environment(device) | {"TRANSFER_QUEUE_ENABLE": "1"}}
    if zygote:
        runtime_env["py_executable"] = shlex.quote(str(zygote.python))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(
            address="local",
            num_cpus=max(16, os.cpu_count() or 1),
            # Without GPUs verl's placement still counts them: a logical resource, one per training process.
            num_gpus=job.spec.resources.train.gpus_per_node if device == "cpu" else None,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            object_store_memory=256 * 1024**2 if device == "cpu" else None,
            _temp_dir=str(temp_dir),
            runtime_env=runtime_env,
        )
    except (ray.exceptions.RaySystemError, RuntimeError, OSError) as error:
        raise RunFailedError(
            f"Ray did not start: {str(error).strip()} Try again; if it stays so, memory, disk or ports may be short.",
            "ray",
        ) from error
    finally:
        # Ray takes SIGTERM for itself, to print where it hit.
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _environment(device: str) -> dict[str, str]:
    common = {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VERL_LOGGING_LEVEL": "WARNING",
        "HYDRA_FULL_ERROR": "1",
    }
    if device != "cpu":
        return common
    return common | {
        "VERL_PLATFORM": "cpu",
        # vLLM reads it for the CPU as: the executor may be in the engine's process.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


def _keep_logs(temp_dir: Path, folder: RunFolder) -> None:
    """Copy what Ray's workers wrote to the run folder: the session itself is deleted."""
    target = folder.logs / "ray"
    if (zygote := temp_dir / "zygote.log").exists():
        shutil.copyfile(zygote, folder.logs / zygote.name)
    for file in temp_dir.glob("session_2*/logs/worker-*"):
        if file.stat().st_size:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / file.name)


def _finish(folder: RunFolder) -> None:
    from turnmill.observability.report import draw_curve, summarise

    folder.mark("ended")
    folder.write_summary(summarise(folder.path))
    if any(True for _ in folder.read_metrics()):
        draw_curve(folder.path)
