"""Makes a fine-tuned model: a run of `sft` in a folder of its own, whose last checkpoint becomes a model folder."""

import json
import shutil
import tempfile
import time
from pathlib import Path

from turnmill.jobs import AgentTrainingJob, dump_job
from turnmill.jobs.fine_tuning import FineTuningSettings, Sft
from turnmill.jobs.tracking import MetricsSettings, TrackingSettings
from turnmill.jobs.training import TrainingSettings
from turnmill.observability.progress import Progress, write_progress
from turnmill.observability.run_folder import RunFolder, Silence
from turnmill.training.export import export
from turnmill.training.sft.trainer import SftTrainer
from turnmill.training.verl.types import Metrics

_NO_LIMIT = 1_000_000
_POLICY = "actor_rollout_ref.model."


def make_fine_tuned(job: AgentTrainingJob, *, model: Path, folder: RunFolder, device: str, target: Path) -> None:
    """Fine-tune a model as `model.fineTune` says and write it to `target`; `folder` is that of the run, which waits."""
    started = time.perf_counter()
    silence = Silence(job.spec.training.timeouts.checkpoint_seconds, "training.timeouts.checkpointSeconds")
    last: Metrics = {}

    def tell(step: int, steps: int, metrics: Metrics) -> None:
        last.update(metrics)
        folder.allow_silence(silence if step >= steps else None)
        message = f"loss {metrics['train/loss']:.3f}"
        write_progress(folder, Progress(phase="fine-tuning", done=step, total=steps, message=message))

    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        own = fine_tuning_job(job, model)
        run, made = RunFolder(unfinished / "run"), unfinished / "model"
        run.create()
        run.write_job(dump_job(own))
        trainer = SftTrainer(own, model=model, run_dir=run.path, device=device)
        trainer.fit(tell)
        trainer.close()
        export(own, run.path, made)
        shutil.copyfile(run.metrics, made / "fine_tuning.jsonl")
        facts = {"loss": last["train/loss"], "rows": len(trainer.rows.kept), "steps": trainer.steps}
        facts |= {"seconds": time.perf_counter() - started}
        settings = job.spec.model.fine_tune
        assert settings is not None
        facts_and_settings = facts | {"settings": settings.model_dump(mode="json", by_alias=True)}
        (made / "warm_start.json").write_text(json.dumps(facts_and_settings, indent=2) + "\n")
        try:
            made.replace(target)
        except OSError:
            # Another run was faster.
            if not target.exists():
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def fine_tuning_job(job: AgentTrainingJob, model: Path) -> AgentTrainingJob:
    """Return the job that fine-tunes the model of another, on its devices that train."""
    spec, settings = job.spec, job.spec.model.fine_tune
    assert settings is not None
    shared = {name: getattr(settings, name) for name in FineTuningSettings.model_fields}
    changes = {
        "model": spec.model.model_copy(update={"path": str(model), "warm_start": None, "fine_tune": None}),
        "algorithm": Sft(**shared, epochs=settings.epochs),
        "training": TrainingSettings(
            steps=_NO_LIMIT, checkpoint_every=_NO_LIMIT, seed=settings.seed, timeouts=spec.training.timeouts
        ),
        "tracking": TrackingSettings(),
        "metrics": MetricsSettings(),
        "verl": {
            f"model.{name.removeprefix(_POLICY)}": value
            for name, value in spec.verl.items()
            if name.startswith(_POLICY)
        },
    }
    return job.model_copy(update={"spec": spec.model_copy(update=changes)})
