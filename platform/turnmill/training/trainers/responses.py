"""verl's PPO trainer whose workers write log-probs and values of responses, which the trainer does not read."""

import ray
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import PPOTrainer

from turnmill.jobs import AgentTrainingJob
from turnmill.training.response_columns import asking_for, statistics_of
from turnmill.training.verl.types import Metrics


class ResponseTrainer(PPOTrainer):
    """Asks workers for columns of responses, and for statistics in place of tokens."""

    job: AgentTrainingJob

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: Metrics) -> KVBatchMeta:
        # Rows of another policy differ in log-probs anyway, so they are not compared.
        is_compared_R = self._is_on_policy(batch)
        if is_compared_R is not None:
            metrics["turnmill/fresh_rows"] = float(sum(is_compared_R))
        if self.config.algorithm.rollout_correction.bypass_mode:
            # Not that of an asynchronous mode, which saves weights: all updates of a step start from the same ones.
            return PPOTrainer._compute_old_log_prob(self, batch, metrics)
        settings = self._inference_settings | {"calculate_entropy": True}
        asked = asking_for("old_log_probs", batch, settings, is_compared_R)
        metrics.update(statistics_of(self.actor_rollout_wg.compute_log_prob(asked)))
        return batch

    def _is_on_policy(self, batch: KVBatchMeta) -> list[bool] | None:
        """Return which rows the policy generated with its present weights; None for all, as in the mode `sync`."""
        if self.job.spec.training.mode == "sync":
            return None
        version = max(0, self.global_steps - 1)
        return [tag.get("min_global_steps") == version for tag in batch.tags]

    def _compute_ref_log_prob(self, batch: KVBatchMeta, metrics: Metrics) -> KVBatchMeta:
        settings = self._inference_settings | {"calculate_entropy": False}
        if self.ref_in_actor:
            asked = asking_for("ref_log_prob", batch, settings | {"no_lora_adapter": True})
            self.actor_rollout_wg.compute_log_prob(asked)
        else:
            self.ref_policy_wg.compute_ref_log_prob(asking_for("ref_log_prob", batch, settings))
        return batch

    def _compute_values(self, batch: KVBatchMeta, metrics: Metrics) -> KVBatchMeta:
        ray.get(self.critic_wg.infer_batch(asking_for("values", batch, self._inference_settings)).futures)
        return batch

    @property
    def _inference_settings(self) -> dict[str, object]:
        """What workers read beside the rows, where they compute without learning."""
        return {"temperature": self.config.actor_rollout_ref.rollout.temperature}
