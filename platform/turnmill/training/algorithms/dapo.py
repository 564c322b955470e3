"""DAPO (Yu et al., 2025, arXiv:2503.14476): GRPO with dynamic sampling and a length penalty.

Axes: R rows, K trajectories, L tokens of a whole trajectory.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.trajectory_algorithms import Dapo
from turnmill.jobs.verl_settings import VerlSettings
from turnmill.training.advantages.rows import Rows
from turnmill.training.algorithms.base import Sampler, TrajectoryAlgorithm
from turnmill.training.algorithms.grpo import group_advantages


class DapoAlgorithm(TrajectoryAlgorithm[Dapo]):
    """GRPO's advantages; tasks whose trajectories all have the same reward are replaced."""

    estimator = "grpo"
    constant_over_row = True
    drops_singletons = True

    def estimate_tokens(
        self, rewards_KL: Tensor, mask_KL: Tensor, groups_K: Sequence[str], values_KL: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return GRPO's advantage of each trajectory at each of its tokens; see `group_advantages`."""
        return group_advantages(rewards_KL, groups_K, normalise=self.settings.normalise)

    def penalties(self, lengths_R: Tensor, limit: int) -> Tensor:
        """Return DAPO's soft overlong punishment, shape (rows,).

        It is 0 up to `limit - overlong.tokens` tokens, and falls linearly to `-overlong.penalty` at `limit`.
        """
        tokens = self.settings.overlong.tokens
        if tokens is None:
            return torch.zeros_like(lengths_R, dtype=torch.float32)
        beyond_R = (lengths_R - (limit - tokens)).clamp(min=0, max=tokens)
        return -self.settings.overlong.penalty * beyond_R / tokens

    def metrics(self, rows: Rows, penalties_R: Tensor) -> dict[str, float]:
        """Return the share of rows that were penalized."""
        return {"turnmill/overlong_ratio": (penalties_R < 0).double().mean().item()}

    def sampler(self, *, is_async: bool) -> Sampler | None:
        """Return the buffer for dynamic sampling, unless `dynamicSampling.maxBatches` is 1."""
        max_batches = self.settings.dynamic_sampling.max_batches
        if max_batches == 1:
            return super().sampler(is_async=is_async)
        return Sampler("turnmill.training.dynamic_sampling:FilteringStepBuffer", {"max_batches": max_batches})

    def verl_settings(self, job: AgentTrainingJob) -> VerlSettings:
        """Return the settings of every algorithm, and whether advantages are divided by the standard deviation."""
        return super().verl_settings(job) | {"algorithm.norm_adv_by_std_in_grpo": self.settings.normalise}
