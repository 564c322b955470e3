"""Supervised fine-tuning on verl's training workers and its loss for it, with the run folder of every other run."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from ray.exceptions import RayTaskError
from tensordict import NonTensorData, TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.dataset_utils import DatasetPadMode, SFTTensorCollator
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions
from verl.utils.tracking import Tracking
from verl.workers.utils.losses import sft_loss

from turnmill.jobs import AgentTrainingJob
from turnmill.observability.run_folder import RunFolder
from turnmill.training import checkpoint_room, checkpoints
from turnmill.training.recorder import RunRecorder, StepLogger
from turnmill.training.sft.config import build_sft_config, micro_batch_tokens
from turnmill.training.sft.rows import Rows, read_rows, read_validation_rows
from turnmill.training.sft.tokens import TokenRow
from turnmill.training.sft.workers import start_workers, stop_workers
from turnmill.training.verl.safe_loading import weights_only
from turnmill.training.verl.types import Metrics
from turnmill.training.vocabulary import save_vocabulary

OnStep = Callable[[int, int, Metrics], None]
"""Called after every step with its number, the number of all steps, and its metrics."""

_TRAINED = ("loss", "grad_norm", "lr", "mfu")


class SftTrainer:
    """Trainer of one attempt, on the driver: it sends batches to the workers, and keeps records and checkpoints."""

    def __init__(self, job: AgentTrainingJob, *, model: Path, run_dir: Path, device: str) -> None:
        settings = job.spec.fine_tuning
        assert settings is not None
        self.settings, self.device = settings, device
        self.recorder = RunRecorder(job, run_dir, device=device)
        self.root = RunFolder(run_dir).checkpoints
        with self.recorder.phase("starting"):
            self.config = build_sft_config(job, model=model, device=device, steps=job.spec.training.steps)
            self.model_config = omega_conf_to_dataclass(self.config.model)
            tokenizer = self.model_config.tokenizer
            self.rows = read_rows(settings, tokenizer, "algorithm")
            validation = settings.validation_data
            self.validation_rows = validation and read_validation_rows(validation, tokenizer, settings.max_length)
            save_vocabulary(tokenizer, RunFolder(run_dir))
            self.job = self.recorder.job = _with_steps(job, len(self.rows.kept))
            self.steps = self.recorder.steps = self.job.spec.training.steps
            self.config.optim.total_training_steps = self.steps
            loss = partial(sft_loss, config=None)
            self.workers = start_workers(self.job, self.config, self.model_config, loss, device)
        self._collate = SFTTensorCollator(DatasetPadMode.NO_PADDING)
        self._micro_batch_tokens = micro_batch_tokens(self.job, device)

    def fit(self, on_step: OnStep = lambda *_: None) -> None:
        """Train to the last step, from the last complete checkpoint if there is one."""
        spec, done = self.job.spec, self._resume()
        loggers, config = list(spec.tracking.loggers), {"job": spec.model_dump(mode="json", by_alias=True)}
        tracking = Tracking(spec.tracking.project, self.job.metadata.name, loggers, config=config)
        logger = StepLogger(tracking, self.recorder, after_step=lambda: None)
        self.recorder.folder.allow_silence(None)
        if done == 0 and self.validation_rows:
            self.recorder.log_validation(0, self._validate())
        for step in range(done + 1, self.steps + 1):
            self.recorder.begin_step(step)
            started = time.monotonic()
            metrics = self._train(step)
            if self.validation_rows and _is_due(step, spec.training.validation.every, self.steps):
                metrics |= self._validate()
            saves = _is_due(step, spec.training.checkpoint_every, self.steps)
            if saves:
                self._save(step)
            logger.log(metrics | {"timing_s/step": time.monotonic() - started}, step)
            if saves:
                self._complete(step)
            on_step(step, self.steps, metrics)
        tracking.finish(exit_code=0)

    def close(self) -> None:
        """End the workers and free their devices."""
        stop_workers(self.workers)

    # ---- batches ----

    def _train(self, step: int) -> Metrics:
        rows = self.rows.batch(step, self.settings.batch_size, self.job.spec.training.seed)
        output = self.workers.train_batch(self._batch(rows, update_lr_scheduler=True)).get()
        measured = tu.get(output, "metrics")
        self.recorder.beat()
        metrics = {f"train/{name}": float(measured[name]) for name in _TRAINED if name in measured}
        return metrics | {
            "train/epoch": step * self.settings.batch_size / len(self.rows.kept),
            "train/global_tokens": float(sum(len(row.ids) for row in rows)),
            "train/loss_tokens": float(sum(sum(row.mask) for row in rows)),
            "train/rows_too_long": float(self.rows.num_too_long),
        }

    def _validate(self) -> Metrics:
        """Return the mean loss of a token of the validation's answers."""
        assert self.validation_rows
        total = tokens = 0.0
        with self.recorder.phase("validation"):
            for rows in _full_batches(self.validation_rows, self.settings.batch_size):
                output = self.workers.infer_batch(self._batch(rows)).get()
                num_tokens = sum(sum(row.mask) for row in rows)
                total += num_tokens * float(tu.get(output, "metrics")["loss"])
                tokens += num_tokens
                self.recorder.beat()
        return {"val/loss": total / tokens}

    def _batch(self, rows: Sequence[TokenRow], **settings: bool) -> TensorDict:
        """Return rows as verl's workers take them, with about as many tokens for each."""
        lengths = [len(row.ids) for row in rows]
        num_workers = max(self.workers._query_dispatch_info("train")) + 1
        work = calculate_workload(torch.tensor(lengths, dtype=torch.int64)).tolist()
        parts = get_seqlen_balanced_partitions(work, k_partitions=num_workers, equal_size=True)
        ordered = [rows[place] for part in parts for place in part]
        data: TensorDict = tu.get_tensordict(
            self._collate([_columns(row) for row in ordered]),
            {
                "use_remove_padding": self.config.model.use_remove_padding,
                "use_dynamic_bsz": True,
                "max_token_len_per_gpu": self._micro_batch_tokens,
                "temperature": 1.0,
                "global_batch_size": len(rows),
                "pad_mode": DatasetPadMode.NO_PADDING,
                "pad_token_id": self.model_config.tokenizer.pad_token_id,
            },
        )
        tu.assign_non_tensor(data, global_token_num=NonTensorData([len(row.ids) for row in ordered]), **settings)
        return data

    # ---- checkpoints ----

    def _resume(self) -> int:
        """Load the last complete checkpoint, and return its step; 0 without one."""
        found = checkpoints.latest(self.root)
        if found is None:
            return 0
        with weights_only():
            self.workers.load_checkpoint(local_path=str(found.path / "actor"))
        self.recorder.resume_after(found.state.step)
        return found.state.step

    def _save(self, step: int) -> None:
        """Save a checkpoint. Raises RunFailedError if it cannot be written; earlier checkpoints stay."""
        seconds = self.job.spec.training.timeouts.checkpoint_seconds
        try:
            with self.recorder.allowing(seconds, "training.timeouts.checkpointSeconds"):
                checkpoint_room.wait_for_room(self.root)
                self.workers.save_checkpoint(
                    local_path=str(checkpoints.folder_of(self.root, step) / "actor"), global_step=step
                )
        except (OSError, RayTaskError) as error:
            raise checkpoint_room.failed_to_write(self.root, step, error) from error

    def _complete(self, step: int) -> None:
        """Mark the checkpoint of a step complete, once the step's metrics are written."""
        state = checkpoints.RunState(step=step, slots=(), kl_coefficient=0.0)
        keep, run = self.job.spec.training.keep_checkpoints, checkpoints.run_of(self.job)
        try:
            checkpoints.complete(self.root, state, keep=keep, run=run)
        except OSError as error:
            raise checkpoint_room.failed_to_write(self.root, step, error) from error
        checkpoints.write_digests(self.root, step)
        self.recorder.checkpoint_written()


def _with_steps(job: AgentTrainingJob, num_rows: int) -> AgentTrainingJob:
    """Return the job with the number of steps that it takes: fewer where `epochs` end before."""
    settings, training = job.spec.fine_tuning, job.spec.training
    assert settings is not None
    if settings.epochs is None:
        return job
    steps = min(training.steps, math.ceil(settings.epochs * num_rows / settings.batch_size))
    spec = job.spec.model_copy(update={"training": training.model_copy(update={"steps": steps})})
    return job.model_copy(update={"spec": spec})


def _is_due(step: int, every: int | None, steps: int) -> bool:
    return step == steps or (every is not None and step % every == 0)


def _full_batches(rows: Rows, size: int) -> Iterator[list[TokenRow]]:
    """Yield all rows in batches of one size; the last is filled with rows that are not learned."""
    for start in range(0, len(rows.kept), size):
        batch = list(rows.kept[start : start + size])
        first = rows.kept[0]
        yield batch + [TokenRow(first.ids, (0,) * len(first.ids))] * (size - len(batch))


def _columns(row: TokenRow) -> dict[str, torch.Tensor]:
    return {
        "input_ids": torch.tensor(row.ids, dtype=torch.int64),
        "position_ids": torch.arange(len(row.ids), dtype=torch.int64),
        "loss_mask": torch.tensor(row.mask, dtype=torch.int64),
    }
