"""Reward quantiles of a step.

Axes: K episodes.
"""

import torch
from torch import Tensor

from turnmill.observability.prometheus import REWARD_QUANTILES


def reward_quantiles(rewards_K: Tensor) -> dict[str, float]:
    """Return quantiles of the episodes' rewards, by metric name; an empty mapping without episodes."""
    if not len(rewards_K):
        return {}
    found = torch.quantile(rewards_K.double(), torch.tensor([float(q) for q in REWARD_QUANTILES], dtype=torch.double))
    return {f"turnmill/reward_quantile/{q}": value for q, value in zip(REWARD_QUANTILES, found.tolist(), strict=True)}
