"""Fine-tuning of the initial model, between its download and the training."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from turnmill.core.errors import RunFailedError, SettingsError
from turnmill.jobs import AgentTrainingJob
from turnmill.observability.progress import Progress, write_progress
from turnmill.observability.run_folder import RunFolder
from turnmill.runs.watch import Report, start_silence, watch
from turnmill.training import accelerators
from turnmill.training.sft.cache import cache_key
from turnmill.training.warm_start.cache import default_cache_dir

if TYPE_CHECKING:
    from ray.actor import ActorHandle


def fine_tuned(
    job: AgentTrainingJob,
    model: Path,
    folder: RunFolder,
    device: str,
    report: Report,
    *,
    start: Callable[[], "ActorHandle"],
    cache_dir: Path | None = None,
) -> Path:
    """Return the folder of the model after `model.fineTune`; it is made here unless the cache has it.

    `start` starts an actor for it, whose end frees the devices. Raises RunFailedError.
    """
    if job.spec.model.fine_tune is None:
        return model
    import ray

    try:
        target = (cache_dir or default_cache_dir()) / cache_key(job, model, device)
    except (SettingsError, OSError) as error:
        raise RunFailedError(f"spec.model.fineTune: {error}", "settings") from error
    if target.exists():
        return target
    folder.allow_silence(start_silence(job))
    write_progress(folder, Progress(phase="fine-tuning"))
    runner = start()
    try:
        text = job.model_dump_json(by_alias=True)
        watch(runner.fine_tune.remote(text, str(model), str(folder.path), device, str(target)), job, folder, report)
    finally:
        ray.kill(runner)
    for demand in accelerators.demands(job):
        accelerators.wait_for_room(demand)
    folder.allow_silence(start_silence(job))
    starting = Progress(phase="starting")
    write_progress(folder, starting)
    report(starting)
    return target
