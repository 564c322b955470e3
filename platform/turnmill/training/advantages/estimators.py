"""Functions that the estimators of several algorithms share.

Axes: K trajectories, L tokens of a whole trajectory, R rows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from turnmill.training.advantages.gae import outcome_advantages
from turnmill.training.advantages.precision import at_least_float32


def move_to_trained_tokens(rewards_KL: Tensor, mask_KL: Tensor) -> Tensor:
    """Move rewards of untrained tokens to the last trained token before them, or else to the first trained one.

    Return rewards of the same shape, (trajectories, tokens). A reward may be at a token after the response, such as the
    last one of an observation, which estimators over tokens would ignore.
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
    """Return the advantage of each turn over the other turns of its situation, shape (rows,).

    This is GiGPO's step-level advantage over anchor states (arXiv:2505.10978). The return of a turn is the sum of its
    reward and those of later turns, discounted by `gamma` per turn. `turns_K` has the rows of each trajectory in order;
    a situation is a group and a state.
    """
    rewards_R = at_least_float32(rewards_R)
    returns = rewards_R.tolist()
    for turns in turns_K:
        for turn, after in zip(reversed(turns[:-1]), reversed(turns[1:]), strict=True):
            returns[turn] += gamma * returns[after]
    return outcome_advantages(torch.tensor(returns, dtype=rewards_R.dtype), situations_R, normalise=normalise)
