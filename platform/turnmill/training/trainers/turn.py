"""verl's PPO trainer over turns: steps of a fixed number of turns, dual-discount GAE, critic warm-up.

Axes: R rows, G response tokens.
"""

import random
from collections.abc import Callable
from functools import cached_property, partial

import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.padding import response_from_nested

from turnmill.core.errors import RunFailedError
from turnmill.core.trajectory import EpisodeSummary
from turnmill.observability.run_folder import RunFolder
from turnmill.rollout.verlog.slot import SlotState
from turnmill.training.advantages.precision import at_least_float32
from turnmill.training.algorithms.turn_ppo import TurnPpoAlgorithm
from turnmill.training.batches.diagnostics import advantage_spread
from turnmill.training.batches.trajectory import read_summaries
from turnmill.training.batches.trajectory_metrics import validation_metrics
from turnmill.training.batches.turn import TurnBatch, turn_metrics
from turnmill.training.critic_loss import slots_per_row, split_slots, turn_value_loss
from turnmill.training.dataset import prompt_lengths, select
from turnmill.training.trainers.async_rollout import ColocateAsync, SeparateAsync
from turnmill.training.trainers.base import RunTrainer
from turnmill.training.trainers.sync import Sync
from turnmill.training.verl.types import Metrics, Tag

# With fewer episodes, a single failure would be a large share.
MIN_EPISODES_FOR_RATIO = 20


class TurnTrainer(RunTrainer):
    """verl's trainer with a row per turn; it is mixed into the class of each mode."""

    sleep_engines: Callable[[], None]
    wake_engines: Callable[[], None]

    def __init__(self, config: DictConfig) -> None:
        self._episodes = self._failures = 0.0
        super().__init__(config)

    # ---- set-up ----

    @cached_property
    def algorithm(self) -> TurnPpoAlgorithm:
        """The algorithm, with the job's settings."""
        return TurnPpoAlgorithm(self.job.spec.turn_ppo)

    def _setup(self) -> None:
        super()._setup()
        self.critic_wg.set_loss_fn(
            partial(
                turn_value_loss,
                omega_conf_to_dataclass(self.config.critic),
                first_token_weight=self.job.spec.turn_ppo.first_token_value_weight,
                max_response_tokens=self.job.spec.verlog.max_response_tokens,
            )
        )

    def _init_dataloader(self) -> None:
        self.config.data.train_max_samples = self.job.spec.environment.count
        super()._init_dataloader()
        # The critic's learning rate schedule includes the updates of its warm-up.
        warmup = self.job.spec.turn_ppo.critic_warmup
        self.config.critic.optim.total_training_steps += warmup.steps if warmup.batches else 0

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        # Rows are padded only for inference; the turns of updates already are a multiple of the mini-batch.
        return dp_size

    # ---- the run ----

    def on_train_begin(self) -> None:
        """Restore the environments of a resumed run, or validate the initial policy and warm up the critic."""
        super().on_train_begin()
        if self.resumed_from is not None:
            self.agent_loop_manager.restore(self.resumed_from.state.slots)
        elif self._warms_up():
            self._warm_up_critic()

    # ---- one batch ----

    def _turns_of(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Return the rows that were sampled: no bootstrap rows, no padding."""
        return select(batch, [self._is_turn(key, tag) for key, tag in zip(batch.keys, batch.tags, strict=True)])

    def _is_turn(self, key: str, tag: Tag) -> bool:
        turns = self.job.spec.turns_per_step // self.job.spec.environment.count
        return not tag.get("is_padding", False) and int(key.rsplit("_", 1)[1]) < turns

    def _balance_batch(self, batch: KVBatchMeta, metrics: Metrics, **kwargs: object) -> KVBatchMeta:
        self._require_all_segments(batch)
        return super()._balance_batch(batch, metrics, **kwargs)

    def _require_all_segments(self, batch: KVBatchMeta) -> None:
        spec = self.job.spec
        expected = spec.turns_per_step + spec.environment.count
        if len(batch.keys) < expected:
            raise RunFolder(self.run_dir).read_failure() or RunFailedError(
                f"Step {self.global_steps} got {len(batch.keys)} rows of {expected}: agent loops ended early. "
                f"See {self.run_dir / 'logs'}.",
                "rollout",
            )

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: Metrics) -> KVBatchMeta:
        super()._compute_old_log_prob(self._turns_of(batch), metrics)
        return batch

    def _compute_ref_log_prob(self, batch: KVBatchMeta, metrics: Metrics) -> KVBatchMeta:
        super()._compute_ref_log_prob(self._turns_of(batch), metrics)
        return batch

    def _compute_values(self, batch: KVBatchMeta, metrics: Metrics) -> KVBatchMeta:
        """Compute the critic's values: one slot more than response tokens, and the first of the bootstrap rows."""
        batch.extra_info.update(
            {"compute_loss": False, "temperature": self.config.actor_rollout_ref.rollout.temperature}
        )
        ray.get(self.critic_wg.infer_batch(batch).futures)
        fields = ["values", "responses", "response_mask"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        num_slots = slots_per_row(data["responses"].offsets().diff(), self.job.spec.verlog.max_response_tokens)
        values = at_least_float32(data["values"])
        slots = split_slots(values, prompt_lengths(batch), num_slots)
        responses = response_from_nested(values, data["response_mask"])
        columns = {"values": responses, "slot_values": torch.nested.as_nested_tensor(slots, layout=torch.jagged)}
        tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(columns, batch_size=len(batch.keys))
        )
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: Metrics) -> KVBatchMeta:
        """Compute dual-discount GAE over the turns of each environment, after the KL penalty (Verlog)."""
        turns = TurnBatch.read(self._rows_of(batch), self.job)
        rewards_RG = self._rewards_after_kl(turns, metrics)
        advantages_RG, returns_RG = self.algorithm.estimate(
            turns.with_bootstrap_rows(rewards_RG),
            turns.values_RG,
            turns.mask_RG,
            turns.dones_R,
            num_environments=turns.num_segments,
        )
        turns.write(advantages_RG, returns_RG, rewards_RG)
        metrics.update(turn_metrics(turns, rewards_RG, max_response_tokens=self.job.spec.verlog.max_response_tokens))
        metrics.update(advantage_spread(advantages_RG, turns.mask_RG))
        if self.global_steps > 0:
            self.trajectory_log.advantages.write_tokens(self.global_steps, turns.token_advantages(advantages_RG))
            self._require_few_failures(metrics)
            self._correct_off_policy(self._turns_of(batch), metrics)
        return batch

    def _require_few_failures(self, metrics: Metrics) -> None:
        """Raise RunFailedError if too large a share of the run's episodes has failed."""
        self._failures += metrics["turnmill/episodes/failed"]
        self._episodes += sum(metrics[f"turnmill/episodes/{reason}"] for reason in ("completed", "max_turns", "failed"))
        ratio, limit = self._failures / max(1.0, self._episodes), self.job.spec.training.max_failed_ratio
        if self._episodes >= MIN_EPISODES_FOR_RATIO and ratio > limit:
            raise RunFailedError(
                f"{self._failures:.0f} of {self._episodes:.0f} episodes failed; training.maxFailedRatio is {limit:g}. "
                "`turnmill trajectories RUN_DIR --failed` shows why.",
                "failed_ratio",
            )

    def _rewards_after_kl(self, turns: TurnBatch, metrics: Metrics) -> torch.Tensor:
        if not self.config.algorithm.use_kl_in_reward:
            return turns.scores_RG
        mask_RG = turns.mask_RG[: turns.num_turns]
        return self._after_kl(turns.scores_RG, turns.old_log_probs_RG, turns.ref_log_probs_RG, mask_RG, metrics)

    def _update_critic(self, batch: KVBatchMeta, metrics: Metrics) -> KVBatchMeta:
        super()._update_critic(self._turns_of(batch), metrics)
        self.recorder.beat()
        return batch

    def _update_actor(self, batch: KVBatchMeta, metrics: Metrics) -> KVBatchMeta:
        super()._update_actor(self._turns_of(batch), metrics)
        return batch

    def _compute_metrics(self, batch: KVBatchMeta, metrics: Metrics, *args: object, **kwargs: object) -> None:
        super()._compute_metrics(self._turns_of(batch), metrics, *args, **kwargs)

    # ---- critic warm-up ----

    def _warms_up(self) -> bool:
        """Return whether the critic is trained before the first step, if there is one."""
        warmup = self.job.spec.turn_ppo.critic_warmup
        return bool(self.job.spec.training.steps and warmup.batches and warmup.steps)

    def _warm_up_critic(self) -> None:
        """Train the critic alone on turns gathered once by the frozen policy (Verlog's critic pre-training)."""
        warmup = self.job.spec.turn_ppo.critic_warmup
        first_step = self.global_steps
        self.global_steps = 0
        with self.recorder.phase("critic warm-up", total=warmup.batches + warmup.steps):
            batches = [self._gather_for_warmup(number) for number in range(warmup.batches)]
            # As in a step: engines on the trainer's devices give up their memory before anything is computed there.
            self.sleep_engines()
            for batch in batches:
                self._compute_log_probs_for_warmup(batch)
            generator = random.Random(self.job.spec.training.seed)
            for step in range(warmup.steps):
                metrics: Metrics = {}
                keys: list[tuple[str, Tag]] = []
                for batch in batches:
                    self._compute_values(batch, metrics)
                    self._compute_advantage(batch, metrics)
                    turns = self._turns_of(batch)
                    keys.extend(zip(turns.keys, turns.tags, strict=True))
                chosen = generator.sample(keys, self._warmup_turns(len(keys)))
                subset = KVBatchMeta(partition_id="train", keys=[k for k, _ in chosen], tags=[t for _, t in chosen])
                super()._update_critic(subset, metrics)
                self.recorder.advance("critic warm-up", warmup.batches + step + 1, metrics)
            for batch in batches:
                tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)
            self.wake_engines()
        self.global_steps = first_step

    def _gather_for_warmup(self, number: int) -> KVBatchMeta:
        self._add_batch_to_generate()
        batch, _ = self.replay_buffer.sample(
            global_steps=self.global_steps, partition_id="train", batch_size=self.job.spec.environment.count
        )
        batch.extra_info["temperature"] = self.config.actor_rollout_ref.rollout.temperature
        batch = self._balance_batch(batch, {})
        self.recorder.advance("critic warm-up", number + 1, {})
        return batch

    def _compute_log_probs_for_warmup(self, batch: KVBatchMeta) -> None:
        self._compute_old_log_prob(batch, {})
        if self.use_reference_policy:
            self._compute_ref_log_prob(batch, {})

    def _warmup_turns(self, gathered: int) -> int:
        """Return the turns per warm-up update, in whole mini-batches: the job's number, or a tenth of `gathered`."""
        wanted = self.job.spec.turn_ppo.critic_warmup.turns_per_step or -(-gathered // 10)
        minibatch = self.job.spec.turn_ppo.minibatch_turns
        return min(gathered, max(minibatch, wanted // minibatch * minibatch))

    # ---- validation and checkpoints ----

    def _measure_validation(self, batch: KVBatchMeta, *, num_episodes: int) -> dict[str, float]:
        if len(batch.keys) < num_episodes:
            raise RunFolder(self.run_dir).read_failure() or RunFailedError(
                f"{num_episodes - len(batch.keys)} of {num_episodes} validation episodes could not be played. "
                f"See {self.run_dir / 'logs'}.",
                "rollout",
            )
        return validation_metrics(read_summaries(batch, EpisodeSummary))

    def _slot_states(self) -> tuple[SlotState, ...]:
        return tuple(self.agent_loop_manager.snapshot(self.global_steps))


class TurnTrainerSync(TurnTrainer, Sync):
    """Alternates rollout and learning on the same devices."""


class TurnTrainerColocateAsync(TurnTrainer, ColocateAsync):
    """Overlaps rollout and learning on the same devices."""


class TurnTrainerSeparateAsync(TurnTrainer, SeparateAsync):
    """Overlaps rollout and learning on separate devices."""
