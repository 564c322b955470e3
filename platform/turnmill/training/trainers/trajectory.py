"""verl's trainer over whole trajectories; failed ones are counted and not trained on.

Axes: R rows, G response tokens.
"""

import math
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass

from turnmill.core.errors import RunFailedError
from turnmill.core.trajectory import EpisodeSummary
from turnmill.observability.advantage_log import TokenAdvantages
from turnmill.observability.run_folder import RunFolder
from turnmill.training.advantages.precision import at_least_float32
from turnmill.training.advantages.rows import Rows, mean_over_trajectories
from turnmill.training.algorithms import trajectory_algorithm_of
from turnmill.training.algorithms.base import TrajectoryAlgorithm
from turnmill.training.batches.diagnostics import advantage_spread
from turnmill.training.batches.ragged import put_ragged
from turnmill.training.batches.row_metrics import metrics_of_tags
from turnmill.training.batches.sample_metrics import sample_metrics
from turnmill.training.batches.trajectory import (
    Split,
    TrajectoryBatch,
    read_summaries,
    split,
    with_advantages,
)
from turnmill.training.batches.trajectory_metrics import trajectory_metrics, validation_metrics
from turnmill.training.critic_loss import trajectory_value_loss
from turnmill.training.dataset import response_lengths, rows_as_columns, select
from turnmill.training.rollout_correction import WEIGHTS
from turnmill.training.row_places import clear
from turnmill.training.shared_tags import SharedTags
from turnmill.training.trainers.async_rollout import ColocateAsync, SeparateAsync
from turnmill.training.trainers.base import RunTrainer
from turnmill.training.trainers.sync import Sync
from turnmill.training.verl.types import Metrics


@dataclass(frozen=True)
class Estimate:
    """Advantages of a step's rows, and what they come from."""

    rows: TrajectoryBatch
    rewarded: Rows
    penalties_R: Tensor
    advantages_RG: Tensor
    returns_RG: Tensor


class TrajectoryTrainer(RunTrainer):
    """verl's trainer with steps of whole trajectories."""

    _estimated: Future[Estimate]
    """Advantages that no token is read for."""

    _described: Future[Metrics]
    """Metrics of the step's trajectories."""

    _cleared: Future[None] | None = None
    """End of the clearing of the step before."""

    @cached_property
    def algorithm(self) -> TrajectoryAlgorithm[Any]:
        """The algorithm, with the job's settings."""
        return trajectory_algorithm_of(self.job.spec.trajectory_algorithm)

    @cached_property
    def _aside(self) -> ThreadPoolExecutor:
        """What is done beside others' work: advantages and metrics while workers compute, clearing during rollout."""
        return ThreadPoolExecutor(1)

    def _setup(self) -> None:
        super()._setup()
        if self.config.critic.enable:
            self.critic_wg.set_loss_fn(partial(trajectory_value_loss, omega_conf_to_dataclass(self.config.critic)))

    def _init_dataloader(self) -> None:
        self._num_requested: Counter[int] = Counter()
        self.config.data.train_max_samples = self.job.spec.tasks_per_step
        super()._init_dataloader()
        if critic_only_steps := self.algorithm.critic_only_steps:
            # The policy's learning rate schedule covers only the steps in which it is trained.
            schedule = self.config.actor_rollout_ref.actor.optim
            schedule.total_training_steps = max(1, schedule.total_training_steps - critic_only_steps)

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        """Return the next tasks of a step: those it starts with, or replacements."""
        num_tasks = self.job.spec.tasks_per_step if num_prompts is None else num_prompts
        first = self._num_requested[self.global_steps]
        self._num_requested[self.global_steps] += num_tasks
        rows = [self.train_dataset[position] for position in range(first, first + num_tasks)]
        batch = tu.get_tensordict(rows_as_columns(rows))
        tu.assign_non_tensor_data(batch, "global_steps", self.global_steps)
        return batch

    def _balance_batch(self, batch: KVBatchMeta, metrics: Metrics, **named: object) -> KVBatchMeta:
        """Drop failed trajectories before anything is computed from the batch."""
        self._split = split(batch)
        self._require_all_trajectories(self._split, self._num_trajectories(self._num_requested[self.global_steps]))
        self._split.require_few_failures(self.job.spec.training.max_failed_ratio, f"Step {self.global_steps}")
        self._drop_failed(self._split)
        selected = self._select_rows(self._split.survivors)
        self._size_minibatches(len(selected.keys))
        batch = super()._balance_batch(selected, metrics, **named)
        if not self._reads_tokens:
            # Nothing that workers compute is needed for it.
            self._estimated = self._aside.submit(self._estimate, self._rows_of(batch), {})
        return batch

    def _num_trajectories(self, num_tasks: int) -> int:
        """Return the number of trajectories of the first tasks of a step."""
        return num_tasks * self.job.spec.group_size

    @property
    def _num_at_once(self) -> int:
        """Trajectories in flight at once; replacements come after the others."""
        asked = self._num_trajectories(self.job.spec.tasks_per_step)
        return min(asked, self.job.spec.max_concurrency or asked)

    def _select_rows(self, survivors: KVBatchMeta) -> KVBatchMeta:
        """Return the rows to train on."""
        return survivors

    def _size_minibatches(self, num_rows: int) -> None:
        """Split the rows into as many updates as the job has mini-batches of tasks, which differ in rows."""
        spec, num_processes = self.job.spec, self.config.trainer.nnodes * self.config.trainer.n_gpus_per_node
        updates = max(1, spec.tasks_per_step // (spec.trajectory_algorithm.minibatch_tasks or spec.tasks_per_step))
        # verl multiplies this by the trajectories per task; all processes get the same number of rows.
        size = math.ceil(num_rows / (updates * spec.group_size))
        factor = num_processes // math.gcd(num_processes, spec.group_size)
        size = math.ceil(size / factor) * factor
        self.config.actor_rollout_ref.actor.ppo_mini_batch_size = self.config.critic.ppo_mini_batch_size = size

    def _require_all_trajectories(self, parts: Split, expected: int) -> None:
        if parts.num_trajectories < expected:
            raise RunFolder(self.run_dir).read_failure() or RunFailedError(
                f"Step {self.global_steps} got {parts.num_trajectories} trajectories of {expected}: agent loops ended "
                f"early. See {self.run_dir / 'logs'}.",
                "rollout",
            )

    def _drop_failed(self, parts: Split) -> None:
        if parts.failed.keys:
            tq.kv_clear(keys=parts.failed.keys, partition_id=parts.failed.partition_id)

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Give rows that did not fail their advantages, after the KL penalty."""
        # Without column names, so that the update reads the columns added here, too.
        batch = select(batch, [True] * len(batch.keys))
        found = self._estimate(self._rows_of(batch), metrics) if self._reads_tokens else self._estimated.result()
        columns = found.advantages_RG, found.returns_RG, found.rewarded.rewards_RG
        found.rows.write(*columns)
        self._correct_off_policy(found.rows.meta, metrics)
        self._fill_padding(batch)
        self._described = self._aside.submit(self._describe, found)
        return batch if self._reads_tokens else with_advantages(batch, found.rows.meta, *columns)

    def _estimate(self, batch: KVBatchMeta, metrics: Metrics) -> Estimate:
        """Estimate the advantages of a step's rows, after the KL penalty, whose metrics are added."""
        rows = self._read_rows(batch)
        penalties_R = self._length_penalties(rows)
        rewards_RG = self._rewards_after_kl(rows, metrics) + rows.at_last_tokens(penalties_R)
        rewarded = rows.with_rewards(rewards_RG)
        return Estimate(rows, rewarded, penalties_R, *self.algorithm.advantages(rewarded))

    def _describe(self, found: Estimate) -> Metrics:
        """Write the advantages into the log, and return the metrics of the trajectories."""
        rows, rewarded, advantages_RG = found.rows, found.rewarded, found.advantages_RG
        means_R = mean_over_trajectories(advantages_RG, rewarded, rows.weights_RG)
        self.trajectory_log.advantages.write(self.global_steps, rows.by_trajectory(means_R))
        self.trajectory_log.advantages.write_tokens(self.global_steps, self._turn_advantages(rows, advantages_RG))
        return (
            self.algorithm.metrics(rewarded, found.penalties_R)
            | advantage_spread(advantages_RG, rows.weights_RG)
            | trajectory_metrics(rows, self._split, at_once=self._num_at_once)
        )

    def _length_penalties(self, rows: TrajectoryBatch) -> Tensor:
        """Return what is added to each row's reward for its length, shape (rows,)."""
        return self.algorithm.penalties(rows.response_lengths_R, self.job.spec.agent.response_token_limit)

    def _read_rows(self, batch: KVBatchMeta) -> TrajectoryBatch:
        """Return the rows of a step, with their tokens where advantages, rewards or values differ between them."""
        if not self._reads_tokens:
            return TrajectoryBatch.of_tags(batch)
        return TrajectoryBatch.read(
            batch, with_reference=self.config.algorithm.use_kl_in_reward, with_values=self.config.critic.enable
        )

    @property
    def _reads_tokens(self) -> bool:
        """True if a step's tokens are read here, and not by the training workers alone."""
        rollout, model = self.config.actor_rollout_ref.rollout, self.config.actor_rollout_ref.model
        return bool(
            not self.algorithm.constant_over_row
            or self.config.algorithm.use_kl_in_reward
            or self.config.critic.enable
            # verl computes these metrics from columns of the rows.
            or rollout.get("moe_load_balance_metrics_interval", 0)
            or model.get("mtp", {}).get("enable_rollout", False)
        )

    def _turn_advantages(self, rows: TrajectoryBatch, advantages_RG: Tensor) -> Iterator[TokenAdvantages]:
        """Yield the advantages of response tokens that go into the trajectory log."""
        return rows.by_turn(advantages_RG)

    def _rewards_after_kl(self, rows: TrajectoryBatch, metrics: dict[str, Any]) -> Tensor:
        if rows.ref_log_probs_RG is None or rows.old_log_probs_RG is None:
            return at_least_float32(rows.scores_RG)
        return self._after_kl(rows.scores_RG, rows.old_log_probs_RG, rows.ref_log_probs_RG, rows.mask_RG, metrics)

    def _fill_padding(self, batch: KVBatchMeta) -> None:
        """Write zeros into the columns of padding rows, which verl's update reads with the others."""
        names = ["advantages", "returns", "token_level_rewards"] if self._reads_tokens else []
        if self.config.algorithm.rollout_correction.rollout_is is not None:
            names.append(WEIGHTS)
        padding = select(batch, [bool(tag.get("is_padding", False)) for tag in batch.tags] if names else [])
        if padding.keys:
            lengths_R = response_lengths(padding)
            zeros_RG = torch.zeros(len(padding.keys), int(lengths_R.max()))
            put_ragged(padding, dict.fromkeys(names, zeros_RG), lengths_R)

    def step(self, metrics: Metrics, timing_raw: Metrics) -> KVBatchMeta:
        """Train on the rows of a step, and return them with their tags, of which verl would make copies."""
        self._trained = SharedTags()
        batch = super().step(metrics, timing_raw)
        batch.tags = self._trained
        return batch

    def _step_once(self, metrics: Metrics, *args: Any) -> KVBatchMeta:
        if self._cleared is not None:
            self._cleared.result()
        batch = super()._step_once(metrics, *args)
        metrics.update(self._described.result())
        self._trained += batch.tags
        kinds = {is_padding: {"is_padding": is_padding} for is_padding in (False, True)}
        batch.tags = SharedTags(kinds[bool(tag.get("is_padding", False))] for tag in batch.tags)
        return batch

    def _compute_metrics(self, batch: KVBatchMeta, metrics: Metrics, *args: Any, **kwargs: Any) -> None:
        if self._reads_tokens:
            super()._compute_metrics(batch, metrics, *args, **kwargs)
        else:
            metrics.update(metrics_of_tags(batch, *args, num_gpus=self._get_n_gpus_for_throughput(), **kwargs))
            self._clear_all_but_one(batch)

    def _clear_all_but_one(self, batch: KVBatchMeta) -> None:
        """Drop rows that are not needed any more, beside the next rollout; verl drops the first one."""
        if len(batch.keys) > 1 and not self.config.trainer.get("rollout_data_dir", None):
            tags = SharedTags(batch.tags[1:])
            others = KVBatchMeta(keys=batch.keys[1:], tags=tags, partition_id=batch.partition_id)
            del batch.keys[1:], batch.tags[1:]
            self._cleared = self._aside.submit(clear, others)
            if self.global_steps >= self.total_training_steps:
                self._cleared.result()

    def _measure_validation(self, batch: KVBatchMeta, *, num_episodes: int) -> dict[str, float]:
        parts = split(batch)
        self._require_all_trajectories(parts, num_episodes)
        parts.require_few_failures(self.job.spec.training.max_failed_ratio, "Validation")
        summaries = read_summaries(parts.survivors, EpisodeSummary)
        samples = self.job.spec.training.validation.samples
        return validation_metrics(summaries, num_failed=len(parts.failed.keys)) | sample_metrics(summaries, samples)


class TrajectoryTrainerSync(TrajectoryTrainer, Sync):
    """Alternates rollout and learning on the same devices."""


class TrajectoryTrainerColocateAsync(TrajectoryTrainer, ColocateAsync):
    """Overlaps rollout and learning on the same devices."""


class TrajectoryTrainerSeparateAsync(TrajectoryTrainer, SeparateAsync):
    """Overlaps rollout and learning on separate devices."""
