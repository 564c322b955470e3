"""How much better each token of a trajectory is than what it is compared with: verl's estimators by their names.

Axes: K trajectories, L tokens of a whole trajectory, R rows.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from turnmill.jobs.trajectory_algorithms import (
    Grpo,
    Ppo,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    Rloo,
    TrajectoryAlgorithm,
)
from turnmill.training.advantages.gae import alone, outcome_advantages

ONE_GROUP = "step"


def estimate(
    algorithm: TrajectoryAlgorithm,
    rewards_KL: Tensor,
    mask_KL: Tensor,
    groups_K: Sequence[str],
    values_KL: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns of every token, shape (trajectories, tokens); advantages are 0 where the mask is.

    Failed trajectories are not among these: the others are compared with each other alone. One that is left alone in
    its group has nothing to be compared with, and so no advantage.
    """
    # verl's module takes seconds to import.
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo import core_algos

    mask_KL = mask_KL.to(rewards_KL.dtype)
    rewards_KL = on_trained_tokens(rewards_KL, mask_KL)
    index = np.array(groups_K, dtype=object)
    if not isinstance(algorithm, Ppo | ReinforcePlusPlus | Grpo):
        # What is compared with nobody has no part in the whitening of a step either.
        mask_KL = mask_KL * ~alone(groups_K)[:, None]
    if mask_KL.sum() < 2 and isinstance(algorithm, Ppo | ReinforcePlusPlus | ReinforcePlusPlusBaseline):
        # One number has no deviation, and verl would raise.
        return torch.zeros_like(rewards_KL), torch.zeros_like(rewards_KL) if values_KL is None else values_KL
    match algorithm:
        case Ppo():
            assert values_KL is not None
            gamma, lam = algorithm.gamma, algorithm.gae_lambda
            found = core_algos.compute_gae_advantage_return(rewards_KL, values_KL, mask_KL, gamma, lam)
        case ReinforcePlusPlus():
            config = AlgoConfig(gamma=algorithm.gamma)
            found = core_algos.compute_reinforce_plus_plus_outcome_advantage(rewards_KL, mask_KL, config=config)
        case ReinforcePlusPlusBaseline():
            found = core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(rewards_KL, mask_KL, index)
        case Rloo():
            found = core_algos.compute_rloo_outcome_advantage(rewards_KL, mask_KL, index)
        case _:
            in_one = isinstance(algorithm, Grpo) and algorithm.baseline == "step"
            compared = [ONE_GROUP] * len(groups_K) if in_one else groups_K
            normalise = bool(getattr(algorithm, "normalise", True))
            advantages_K = outcome_advantages(rewards_KL.sum(1), compared, normalise=normalise)
            found = (advantages_K[:, None].expand_as(mask_KL),) * 2
    advantages_KL, returns_KL = found
    return advantages_KL * mask_KL, returns_KL * mask_KL


def on_trained_tokens(rewards_KL: Tensor, mask_KL: Tensor) -> Tensor:
    """Rewards of tokens that are not trained, moved to the trained token before them, or else to the first one.

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
    """How much better each turn is than the others that began in the same situation (GiGPO's anchor states).

    A turn counts for what it and those after it brought, discounted by `gamma` from turn to turn. `turns_K` names the
    rows of each trajectory in order; situations tell groups apart as well as states.
    """
    returns = rewards_R.tolist()
    for turns in turns_K:
        for turn, after in zip(reversed(turns[:-1]), reversed(turns[1:]), strict=True):
            returns[turn] += gamma * returns[after]
    return outcome_advantages(torch.tensor(returns, dtype=rewards_R.dtype), situations_R, normalise=normalise)
