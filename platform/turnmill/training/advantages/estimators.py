"""What estimators of several algorithms share.

Axes: K trajectories, L tokens of a whole trajectory, R rows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from turnmill.training.advantages.gae import outcome_advantages


def move_to_trained_tokens(rewards_KL: Tensor, mask_KL: Tensor) -> Tensor:
    """Move rewards of tokens that are not trained to the trained token before them, or else to the first one.

    What follows a response, such as the last observation, may have its reward: estimators that go from token to token
    pass it over.
    """
    trained_KL = mask_KL > 0
    positions_L = torch.arange(mask_KL.shape[1], device=mask_KL.device)
    before_KL = torch.where(trained_KL, positions_L, -1).cummax(1).values
    target_KL = torch.where(before_KL >= 0, before_KL, trained_KL.int().argmax(1, keepdim=True))
    return torch.zeros_like(rewards_KL).scatter_add_(1, target_KL, rewards_KL)


def state_advantages(
    rewards_R: Tensor,
    turns_K: Sequence[Sequence[int]],
    situations_R: Sequence[str],
    *,
    gamma: float,
    normalise: bool,
) -> Tensor:
    """Return the advantage of each turn over the others that began in the same situation (GiGPO's anchor states).

    A turn counts for what it and those after it brought, discounted by `gamma` from turn to turn. `turns_K` names the
    rows of each trajectory in order; situations tell groups apart as well as states.
    """
    returns = rewards_R.tolist()
    for turns in turns_K:
        for turn, after in zip(reversed(turns[:-1]), reversed(turns[1:]), strict=True):
            returns[turn] += gamma * returns[after]
    return outcome_advantages(torch.tensor(returns, dtype=rewards_R.dtype), situations_R, normalise=normalise)
