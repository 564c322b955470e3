"""Preparation and end of a run: folder, initial model, environment variables of its processes, summary."""

import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path

import yaml

from turnmill.core.errors import RunFailedError, SettingsError, first_line
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.hub import fetch_command, is_hub_name, local_folder
from turnmill.observability.atomic_files import FULL, PATIENCE
from turnmill.observability.progress import Progress, write_progress
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog
from turnmill.runs.watch import Report


def resolve_device(device: str) -> str:
    """Return the device; `auto` is CUDA if the driver reports a GPU and torch is built for it.

    Raises:
        SettingsError: CUDA without a GPU, or with a build of torch that has no CUDA.
    """
    has_gpu = shows_gpu()
    torch = metadata.version("torch")
    has_cuda = not torch.endswith("+cpu")
    if device == "cuda" and not has_gpu:
        raise SettingsError(
            "spec.resources.device: cuda, but this machine shows no GPU (no /dev/nvidia0). Use cpu or auto."
        )
    if device == "cuda" and not has_cuda:
        raise SettingsError(
            f"spec.resources.device: cuda, but the installed torch {torch} has no CUDA. Install the packages for GPUs "
            "(make install DEVICE=cuda), or use cpu or auto."
        )
    if device == "auto":
        return "cuda" if has_gpu and has_cuda else "cpu"
    return device


def shows_gpu() -> bool:
    """Return whether the driver reports a GPU."""
    return Path("/dev/nvidiactl").exists() or Path("/dev/nvidia0").exists()


def prepare(folder: RunFolder, job: AgentTrainingJob, *, resume: bool) -> None:
    """Prepare the run folder for an attempt."""
    folder.create()
    if resume:
        rewind(folder, job)
    folder.write_job(yaml.safe_dump(job.model_dump(by_alias=True, mode="json"), sort_keys=False))


def rewind(folder: RunFolder, job: AgentTrainingJob) -> None:
    """Delete everything recorded after the last complete checkpoint of the job that is undamaged.

    Raises RunFailedError if there are checkpoints, but none can be used.
    """
    from turnmill.training import checkpoints

    checkpoints.discard_incomplete(folder.checkpoints)
    checkpoints.set_aside_damaged(folder.checkpoints, folder.beat, run=checkpoints.run_of(job))
    newest = checkpoints.latest(folder.checkpoints)
    step = newest.state.step if newest else -1
    folder.truncate_after(step)
    TrajectoryLog(folder).rewind(step)


def ensure_model(job: AgentTrainingJob, folder: RunFolder, report: Report, *, cache_dir: Path | None = None) -> Path:
    """Return the folder of the initial model; a warm start is made unless `cache_dir` has it.

    Raises SettingsError for a path at which there is no model, as seen from this machine.
    """
    spec = job.spec
    if spec.model.path is not None:
        return model_folder(spec.model.path, "spec.model.path", report, cache_dir=cache_dir)
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
        agent=spec.agent,
        cache_dir=cache_dir,
        on_progress=tell,
    )


def ensure_reward_model(job: AgentTrainingJob, report: Report, *, cache_dir: Path | None = None) -> Path | None:
    """Return the folder of `spec.rewardModel`; None for a job without one. Raises SettingsError as `model_folder`."""
    if (wanted := job.spec.reward_model) is None:
        return None
    return model_folder(wanted.path, "spec.rewardModel.path", report, cache_dir=cache_dir)


def model_folder(path: str, place: str, report: Report, *, cache_dir: Path | None = None) -> Path:
    """Return the folder of a model that the job names at `place`, which is downloaded if it is a name of the hub.

    Raises SettingsError for a path at which there is no model, as seen from this machine.
    """
    # In a cluster, the cache of one pod is no folder of the others.
    found = None if cache_dir is not None and is_hub_name(path) else local_folder(path)
    if found is None:
        return download(path, place, report, None if cache_dir is None else cache_dir / "hub")
    if not found.is_dir():
        raise SettingsError(
            f"{place}: {path!r} is no folder on this machine. Give a folder on storage that every machine of the run "
            "mounts, or a name on the Hugging Face hub as owner/name."
        )
    _require_files(found, f"{place}: {path!r}", "Give a folder as save_pretrained of transformers leaves it.")
    return found


def download(name: str, place: str, report: Report, cache_dir: Path | None = None) -> Path:
    """Download what the cache lacks of a model of the hub; return its folder. Raises SettingsError with the way out."""
    from huggingface_hub import snapshot_download

    report(Progress(phase="download", message=name))
    try:
        folder = Path(str(snapshot_download(name, cache_dir=cache_dir, allow_patterns=list(_MODEL_FILES))))
    except Exception as error:
        # Of the network, of the hub, of the disk.
        raise SettingsError(
            f"{place}: {name!r} is no folder, and could not be downloaded ({first_line(error)}). Give the folder of a "
            f"model, or fetch it with `{fetch_command(name)}` where the network is."
        ) from error
    _require_files(folder, f"{place}: {name!r}", "Name a language model with its tokenizer.")
    return folder


def _require_files(folder: Path, named: str, way_out: str) -> None:
    """Raise SettingsError if a model lacks its configuration or its tokenizer."""
    missing = [file for file in ("config.json", "tokenizer_config.json") if not (folder / file).is_file()]
    if missing:
        raise SettingsError(f"{named} has no {' and no '.join(missing)}. {way_out}")


_MODEL_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.py")

_DEFAULTS = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VERL_LOGGING_LEVEL": "WARNING",
    "HYDRA_FULL_ERROR": "1",
}
_CUDA_DEFAULTS = _DEFAULTS | {
    # As verl's launcher sets them (`verl.trainer.constants_ppo`).
    "TOKENIZERS_PARALLELISM": "true",
    "NCCL_DEBUG": "WARN",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "true",
    "VLLM_DISABLE_COMPILE_CACHE": "1",
}
_CPU = {
    "VERL_PLATFORM": "cpu",
    # On the CPU, vLLM reads this as: the executor may be in the engine's process.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Otherwise vLLM compiles a small function, which requires a C++ compiler and takes seconds.
    "TORCH_COMPILE_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # By default 8, of which the TransferQueue says at each put and get that the machine has fewer cores.
    "TQ_NUM_THREADS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def process_environment(device: str) -> dict[str, str]:
    """Return the environment variables that all processes of a run get in addition to their own.

    A default is left out if this process has the variable: its processes inherit the value, and the pods of a cluster
    keep theirs. So do variables that are not named here, such as those of NCCL.
    """
    defaults = _DEFAULTS if device == "cpu" else _CUDA_DEFAULTS
    variables = {name: value for name, value in defaults.items() if name not in os.environ}
    if device != "cpu":
        return variables
    # By default without the plug-in that reports metrics to Ray, which would slow down a small model's short steps.
    return variables | _CPU | {"VLLM_PLUGINS": os.environ.get("VLLM_PLUGINS", "")}


def runtime_env(
    environment: Mapping[str, str], python: Sequence[str], temporary: Path | None = None
) -> dict[str, object]:
    """Return the runtime environment of Ray's workers: variables, and the command that replaces Python, if any.

    `temporary` is the folder for files that are deleted with the run, such as locks and sockets of verl and vLLM. Files
    that torch has compiled are kept.
    """
    variables = {**environment, "TRANSFER_QUEUE_ENABLE": "1"}
    if temporary is not None:
        compiled = Path(tempfile.gettempdir()) / f"torchinductor_{os.getuid()}"
        variables["TORCHINDUCTOR_CACHE_DIR"] = os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(compiled))
        variables["TMPDIR"] = str(temporary)
    result: dict[str, object] = {"env_vars": variables}
    return result | ({"py_executable": shlex.join(python)} if python else {})


@contextmanager
def finalize_run(folder: RunFolder) -> Iterator[None]:
    """Write the summary of the run at the end of the context; after a failure, as far as a full disk allows.

    Else it waits for room, and raises RunFailedError if there is none.
    """
    try:
        yield
    except BaseException:
        with suppress(OSError):
            _finalize(folder, patience=0.0)
        raise
    try:
        _finalize(folder, patience=PATIENCE)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise RunFailedError(
            f"All steps are complete, but the summary or the curve could not be written, as the disk is full: {error}. "
            "Free some space; `--resume` writes both.",
            "run_folder",
        ) from error


def _finalize(folder: RunFolder, *, patience: float) -> None:
    from turnmill.observability.report import draw_curve, summarise

    folder.mark("ended", patience=patience)
    folder.write_summary(summarise(folder.path), patience=patience)
    if any(True for _ in folder.read_metrics()):
        draw_curve(folder.path, patience=patience)
