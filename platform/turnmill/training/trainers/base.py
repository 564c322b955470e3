"""verl's PPO trainer with a run folder, complete checkpoints, validation by episodes, and the CPU as a device."""

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig
from ray.exceptions import RayTaskError
from tensordict import TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.protocol import DataProto
from verl.single_controller.ray import ResourcePoolManager
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.ray_trainer import apply_kl_penalty
from verl.trainer.ppo.utils import Role
from verl.utils import tensordict_utils as tu
from verl.utils.debug import marked_timer
from verl.utils.seqlen_balancing import (
    calculate_workload,
    log_seqlen_unbalance,
)

from turnmill.jobs import job_from_json
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.step_time import RELEASE
from turnmill.observability.trajectory_log import TrajectoryLog
from turnmill.rollout.verlog.slot import SlotState
from turnmill.rollout.worker import LoopManager
from turnmill.training import checkpoint_room, checkpoints
from turnmill.training.advantages.precision import at_least_float32
from turnmill.training.arrivals import Arrivals
from turnmill.training.batches.balance import balanced_parts
from turnmill.training.dataset import rows_as_columns, select
from turnmill.training.recorder import RunRecorder, StepLogger
from turnmill.training.resumable_episodes import ResumableEpisodes
from turnmill.training.rollout_correction import correct_rows
from turnmill.training.trainers.responses import ResponseTrainer
from turnmill.training.verl.correction_config import is_corrected
from turnmill.training.verl.placement import PlacedPools
from turnmill.training.verl.safe_loading import weights_only
from turnmill.training.verl.types import Metrics, Row, ServerManager, Tracking
from turnmill.training.vocabulary import save_vocabulary

# Where verl's buffer polls the queue, its default of 2 s would be most of a small step.
POLL_INTERVAL_SECONDS = 0.02
_BEAT_SECONDS = 5.0


class RunTrainer(ResponseTrainer):
    """Base of all trainers; it is mixed into verl's trainer of each mode."""

    config: DictConfig
    global_steps: int
    timing_raw: dict[str, float]
    resource_pool_manager: ResourcePoolManager
    llm_server_manager: ServerManager

    def __init__(self, config: DictConfig) -> None:
        self.job = job_from_json(config.turnmill.job)
        self.run_dir = Path(config.turnmill.run_dir)
        self.recorder = RunRecorder(self.job, self.run_dir, device=config.trainer.device)
        self.resumed_from: checkpoints.Checkpoint | None = checkpoints.latest(self.run_dir / "checkpoints")
        if self.resumed_from is not None:
            config.trainer.resume_mode = "resume_path"
            config.trainer.resume_from_path = str(self.resumed_from.path)
        self.trajectory_log = TrajectoryLog(RunFolder(self.run_dir))
        self._pending_checkpoint: checkpoints.RunState | None = None
        self._background = ThreadPoolExecutor(1)
        self._digests: list[Future[None]] = []
        self.resumable_episodes = ResumableEpisodes(config, self.job, self.run_dir, self._background)
        self._num_prompts = 0
        super().__init__(config)
        self.replay_buffer.poll_interval = POLL_INTERVAL_SECONDS

    @property
    def logger(self) -> StepLogger:
        """verl's trackers, which get metrics after they are in the run folder."""
        return self._logger

    @logger.setter
    def logger(self, tracking: Tracking) -> None:
        self._logger = StepLogger(tracking, self.recorder, after_step=self._after_step)

    def _setup(self) -> None:
        with self.recorder.phase("starting"):
            super()._setup()
            save_vocabulary(self.tokenizer, RunFolder(self.run_dir))

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        self.resource_pool_manager = PlacedPools(
            self.resource_pool_manager.resource_pool_spec,
            self.mapping,
            accelerator=self.job.spec.resources.train.accelerator,
        )
        # verl imports the engines with its workers, which takes seconds.
        from turnmill.training.verl.workers import CriticWorker, PolicyWorker

        for role in self.role_worker_mapping:
            self.role_worker_mapping[role] = ray.remote(CriticWorker if role == Role.Critic else PolicyWorker)

    # ---- the run ----

    def fit(self, agent_loop_manager: LoopManager) -> None:
        """Train; the agent loop workers report which prompts have ended."""
        self.replay_buffer.arrivals = Arrivals(agent_loop_manager)
        super().fit(agent_loop_manager)

    def on_train_begin(self) -> None:
        """Restore the state of a resumed run, or validate the initial policy."""
        super().on_train_begin()
        self.resumable_episodes.begin(0 if self.resumed_from is None else self.resumed_from.state.step)
        # The launcher has allowed a long start.
        self.recorder.folder.allow_silence(None)
        if self.resumed_from is not None:
            self.recorder.resume_after(self.resumed_from.state.step)
            if self.config.algorithm.use_kl_in_reward:
                self.kl_ctrl_in_reward.value = self.resumed_from.state.kl_coefficient
        elif self._validates:
            self.recorder.log_validation(0, self._validate(before_first_step=True))

    def on_step_begin(self) -> None:
        super().on_step_begin()
        self.recorder.begin_step(self.global_steps)

    def on_sample_end(self) -> None:
        with marked_timer(RELEASE, self.timing_raw):
            super().on_sample_end()

    def on_step_end(self) -> None:
        super().on_step_end()
        self.recorder.beat()
        if self.global_steps >= self.total_training_steps:
            # verl validates at multiples of test_freq; this makes the last step one.
            self.config.trainer.test_freq = self.total_training_steps if self._validates else -1

    def on_train_end(self) -> None:
        super().on_train_end()
        while wait(self._digests, timeout=_BEAT_SECONDS).not_done:
            self.recorder.beat()

    @property
    def _validates(self) -> bool:
        return self.job.spec.training.validation.episodes > 0

    def _rows_of(self, batch: KVBatchMeta) -> KVBatchMeta:
        """Return the rows of a batch without padding."""
        return select(batch, [not tag.get("is_padding", False) for tag in batch.tags])

    def _balance_batch(self, batch: KVBatchMeta, metrics: Metrics, **_: object) -> KVBatchMeta:
        """Order rows by the worker that gets them, as verl does, but by numbers: it compares tensors of one each."""
        ranks = self.actor_rollout_wg._dispatch_info
        if "actor" not in ranks:
            ranks["actor"] = self.actor_rollout_wg._query_dispatch_info("actor")
        num_workers = max(ranks["actor"]) + 1
        multiple = self._get_required_batch_multiple(num_workers)
        batch = upsample_batch_to_divisible_size(batch, multiple, self.tokenizer.eos_token_id)
        lengths = [tag["seq_len"] for tag in batch.tags]
        work = calculate_workload(torch.tensor(lengths, dtype=torch.int64)).tolist()
        parts = balanced_parts(work, num_workers)
        batch.reorder([row for part in parts for row in part])
        metrics.update(log_seqlen_unbalance(lengths, parts, prefix="global_seqlen"))
        return batch

    def _after_kl(
        self, scores: Tensor, old_log_probs: Tensor, ref_log_probs: Tensor, mask: Tensor, metrics: Metrics
    ) -> Tensor:
        """Return token rewards after the KL penalty, shape (rows, response tokens), and adapt the KL coefficient.

        The coefficient (Ziegler et al., 2019, arXiv:1909.08593) stays the same during the critic's warm-up, in which
        the policy does not change.
        """
        coefficient = self.kl_ctrl_in_reward.value
        tensors = {
            "token_level_scores": at_least_float32(scores),
            "old_log_probs": at_least_float32(old_log_probs),
            "ref_log_prob": at_least_float32(ref_log_probs),
            "response_mask": mask,
        }
        data, kl_metrics = apply_kl_penalty(
            DataProto.from_dict(tensors=tensors), self.kl_ctrl_in_reward, self.config.algorithm.kl_penalty
        )
        if self.global_steps < max(1, self.config.trainer.critic_warmup):
            self.kl_ctrl_in_reward.value = coefficient
        metrics.update(kl_metrics)
        metrics["turnmill/kl_reference"] = kl_metrics["actor/reward_kl_penalty"]
        rewards: Tensor = data.batch["token_level_rewards"]
        return rewards

    def _correct_off_policy(self, batch: KVBatchMeta, metrics: Metrics) -> None:
        """Write the weights and the mask of the loss for rows of another policy than the trainer's."""
        settings = self.config.algorithm.rollout_correction
        if is_corrected(settings):
            metrics.update(correct_rows(batch, settings))

    def _submit_batch_to_rollout(self, batch: TensorDict) -> int:
        """Give prompts ids that sort in the order of their requests: rows in the order of random ids differ by run."""
        first, self._num_prompts = self._num_prompts, self._num_prompts + len(batch)
        uids = [f"prompt{number:012d}" for number in range(first, self._num_prompts)]
        tu.assign_non_tensor_stack(batch, "uid", uids)
        submitted: int = super()._submit_batch_to_rollout(batch)
        return submitted

    def _update_actor(self, batch: KVBatchMeta, metrics: Metrics) -> KVBatchMeta:
        batch = super()._update_actor(batch, metrics)
        self.recorder.beat()
        return batch

    # ---- validation ----

    def _validate(self, before_first_step: bool = False) -> dict[str, float]:
        """Play whole episodes and return the means of their metrics; `before_first_step` marks the initial policy."""
        started = time.monotonic()
        with self.recorder.phase("validation"):
            rows = self._validation_rows()
            uids = [f"validation{self.global_steps}x{i}" for i in range(len(rows))]
            batch = tu.get_tensordict(rows_as_columns(rows) | {"uid": np.array(uids, dtype=object)})
            step = 0 if before_first_step else self.global_steps
            tu.assign_non_tensor_data(batch, "global_steps", step)
            tu.assign_non_tensor_data(batch, "validate", True)
            tags = [{"is_prompt": True, "status": "pending", "global_steps": step} for _ in uids]
            tq.kv_batch_put(keys=uids, partition_id="val", tags=tags)
            self.agent_loop_manager.generate_sequences(batch)
            batch, _ = self.replay_buffer.sample(global_steps=step, partition_id="val", batch_size=len(uids))
            num_episodes = len(uids) * self.job.spec.training.validation.samples
            metrics = self._measure_validation(batch, num_episodes=num_episodes)
            tq.kv_clear(keys=batch.keys, partition_id="val")
        return metrics | {"validation/seconds": time.monotonic() - started}

    def _validation_rows(self) -> list[Row]:
        """Return a row for each episode."""
        return [self.train_dataset[i] for i in range(self.job.spec.training.validation.episodes)]

    def _measure_validation(self, batch: KVBatchMeta, *, num_episodes: int) -> dict[str, float]:
        raise NotImplementedError

    # ---- checkpoints ----

    def _save_checkpoint(self) -> None:
        """Save verl's checkpoint and the run's own state; it is marked complete once the step's metrics are written.

        Raises RunFailedError if it cannot be written; earlier checkpoints stay.
        """
        seconds = self.job.spec.training.timeouts.checkpoint_seconds
        try:
            with self.recorder.allowing(seconds, "training.timeouts.checkpointSeconds"):
                checkpoint_room.wait_for_room(self.run_dir / "checkpoints")
                super()._save_checkpoint()
        except (OSError, RayTaskError) as error:
            raise checkpoint_room.failed_to_write(self.run_dir / "checkpoints", self.global_steps, error) from error
        coefficient = self.kl_ctrl_in_reward.value if self.config.algorithm.use_kl_in_reward else 0.0
        self._pending_checkpoint = checkpoints.RunState(
            step=self.global_steps, slots=self._slot_states(), kl_coefficient=float(coefficient)
        )

    def _slot_states(self) -> tuple[SlotState, ...]:
        return ()

    def _after_step(self) -> None:
        self._complete_checkpoint()
        self.resumable_episodes.after_step(self.global_steps)
        keep = self.job.spec.tracking.keep_steps
        if keep is not None:
            self.trajectory_log.drop_before(self.global_steps - keep + 1)

    def _complete_checkpoint(self) -> None:
        if self._pending_checkpoint is not None:
            root, keep = self.run_dir / "checkpoints", self.job.spec.training.keep_checkpoints
            step = self._pending_checkpoint.step
            try:
                run = checkpoints.run_of(self.job)
                checkpoints.complete(root, self._pending_checkpoint, keep=keep, run=run)
            except OSError as error:
                raise checkpoint_room.failed_to_write(root, step, error) from error
            self._digests.append(self._background.submit(checkpoints.write_digests, root, step))
            self._pending_checkpoint = None
            self.recorder.checkpoint_written()

    def _load_checkpoint(self) -> None:
        with weights_only():
            super()._load_checkpoint()
