"""Advantage estimation over turns and over whole trajectories.

Axes: R rows, T turns (time), N environments, G response tokens, K trajectories.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from turnmill.training.advantages.precision import at_least_float32


def dual_discount_gae(
    rewards: Tensor,
    values: Tensor,
    response_mask: Tensor,
    dones: Tensor,
    *,
    num_environments: int,
    token_gamma: float,
    token_lambda: float,
    step_gamma: float,
    step_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation with one discount within a turn and another between turns (Verlog).

    `rewards`, `values` and `response_mask` have the shape (rows, response tokens), `dones` (rows,). Rows are
    time-major, row = t * num_environments + environment, and the last `num_environments` rows are the bootstrap
    rows: only their first value counts. Value slot i is the value before response token i, so a response of L
    tokens has L + 1 live slots where there is room for them; the step discounts apply once per turn, at the last.

    Returns advantages before whitening and returns, each shaped like `values`; zero advantage outside live slots
    and in bootstrap rows. Both are float32, or float64 if rewards or values are. Raises ValueError if the rows do not
    split into environments.
    """
    precision = torch.promote_types(at_least_float32(values).dtype, rewards.dtype)
    values, rewards = values.to(precision), rewards.to(precision)
    num_rows, num_tokens = values.shape
    if num_environments < 1 or num_rows % num_environments or num_rows < 2 * num_environments:
        raise ValueError(
            f"{num_rows} rows do not hold the turns of {num_environments} environments and one bootstrap row each: "
            "give a multiple of the number of environments, at least twice as many."
        )
    num_turns = num_rows // num_environments - 1
    turns = num_turns * num_environments

    live_RG = torch.ones_like(response_mask[:turns], dtype=torch.bool)
    live_RG[:, 1:] = response_mask[:turns, :-1] > 0
    lengths_R = live_RG.sum(1)
    slots_RG = _slots(live_RG)

    values_RG, rewards_RG = values[:turns], rewards[:turns]
    if slots_RG is not None:
        values_RG, rewards_RG = (_gather_left(x, live_RG, slots_RG) for x in (values_RG, rewards_RG))

    first_value_RT = values[:, 0]
    carry_R = 1.0 - dones[:turns].to(values.dtype)
    last_R1 = (lengths_R - 1)[:, None]
    delta_RG = rewards_RG - values_RG
    delta_RG[:, :-1] += token_gamma * values_RG[:, 1:]
    boundary_R1 = (step_gamma * carry_R * first_value_RT[num_environments:])[:, None]
    boundary_R1 = boundary_R1 + rewards_RG.gather(1, last_R1) - values_RG.gather(1, last_R1)
    delta_RG.scatter_(1, last_R1, boundary_R1)
    index_G = torch.arange(num_tokens, device=values.device)
    valid_RG = index_G < lengths_R[:, None]
    delta_RG *= valid_RG

    decay = token_gamma * token_lambda
    within_RG = _discounted_suffix_sums(delta_RG, decay)
    # A turn's estimate goes on in the next turn's first slot: one multiplication per turn, not per token.
    across_R = step_gamma * step_lambda * carry_R
    if decay == 1.0:
        reach_RG = None
        reach_first_R = across_R
    else:
        exponent_RG = (last_R1 - index_G).clamp(min=0).to(values.dtype)
        reach_RG = torch.pow(torch.as_tensor(decay, dtype=values.dtype, device=values.device), exponent_RG)
        reach_first_R = across_R * reach_RG[:, 0]
    following_R = _follow_turns(within_RG[:, 0], reach_first_R, num_environments)
    tail_R1 = (across_R * following_R)[:, None]
    advantages_RG = within_RG + (tail_R1 if reach_RG is None else reach_RG * tail_R1)
    advantages_RG *= valid_RG

    if slots_RG is not None:
        advantages_RG = advantages_RG.gather(1, slots_RG) * live_RG
    advantages = torch.cat([advantages_RG, values.new_zeros(num_environments, num_tokens)])
    return advantages, advantages + values


def _slots(live_RG: Tensor) -> Tensor | None:
    """Return the rank of each slot among its row's live ones; None where the live slots are a prefix in every row."""
    if not bool((live_RG[:, 1:] & ~live_RG[:, :-1]).any()):
        return None
    return (live_RG.cumsum(1) - 1).clamp(min=0)


def _gather_left(x_RG: Tensor, live_RG: Tensor, slots_RG: Tensor) -> Tensor:
    """Move the live slots of each row to its left end, in order."""
    target_RG = torch.where(live_RG, slots_RG, live_RG.shape[1])
    out = x_RG.new_zeros(x_RG.shape[0], x_RG.shape[1] + 1)
    return out.scatter_(1, target_RG, x_RG)[:, :-1]


def _discounted_suffix_sums(x_RG: Tensor, decay: float) -> Tensor:
    """Return the sum over j >= i of decay^(j-i) x[j], by doubling: log2(tokens) passes over the whole tensor."""
    sums = x_RG.clone()
    shift = 1
    while shift < x_RG.shape[1] and decay != 0.0:
        step = sums[:, shift:] * decay**shift if decay != 1.0 else sums[:, shift:].clone()
        sums[:, :-shift] += step
        shift *= 2
    return sums


def _follow_turns(first_R: Tensor, reach_R: Tensor, num_environments: int) -> Tensor:
    """Return the advantage estimate of each row's next turn, computed backwards from the last turn, which has 0."""
    first_TN, reach_TN = first_R.view(-1, num_environments), reach_R.view(-1, num_environments)
    following_TN = torch.zeros_like(first_TN)
    for t in range(first_TN.shape[0] - 2, -1, -1):
        following_TN[t] = first_TN[t + 1] + reach_TN[t + 1] * following_TN[t + 1]
    return following_TN.reshape(-1)


def whiten(advantages: Tensor, response_mask: Tensor) -> Tensor:
    """Normalize advantages to mean 0 and unbiased variance 1 over the mask; both of shape (rows, response tokens)."""
    advantages, mask = at_least_float32(advantages), response_mask.bool()
    kept = advantages[mask]
    variance = kept.var(unbiased=True) if kept.numel() > 1 else kept.new_ones(())
    return (advantages - kept.mean()) * torch.rsqrt(variance + 1e-8)


def outcome_advantages(rewards_K: Tensor, groups_K: Sequence[str], *, normalise: bool) -> Tensor:
    """Return the advantage of each trajectory in its group by verl's GRPO (arXiv:2402.03300), shape (trajectories,).

    Failed trajectories are not included: the others are compared among themselves. The advantage of a trajectory that
    is alone in its group is 0.
    """
    rewards_K = at_least_float32(rewards_K)
    members: dict[str, list[int]] = {}
    for trajectory, group in enumerate(groups_K):
        members.setdefault(group, []).append(trajectory)
    ordered_K = torch.tensor([trajectory for group in members.values() for trajectory in group], dtype=torch.long)
    sizes = torch.tensor([len(group) for group in members.values()], dtype=torch.long)
    means, deviations = _means_and_deviations(rewards_K[ordered_K], sizes)
    of_trajectory_K = torch.empty_like(ordered_K)
    of_trajectory_K[ordered_K] = torch.arange(len(sizes)).repeat_interleave(sizes)
    advantages_K = rewards_K - means[of_trajectory_K]
    if normalise:
        advantages_K = advantages_K / (deviations[of_trajectory_K] + 1e-6)
    return advantages_K.masked_fill(singleton_groups(groups_K), 0.0)


def _means_and_deviations(rewards_K: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of groups that follow one another; 0 and 1 for groups of one.

    Groups of the same size at once, a row each, which gives the digits that verl gets from one group after another;
    sums over a larger tensor do not.
    """
    means, deviations = rewards_K.new_zeros(len(sizes)), rewards_K.new_ones(len(sizes))
    firsts = sizes.cumsum(0) - sizes
    for size in sorted({*sizes.tolist()} - {1}):
        is_of_size = sizes == size
        rewards_of_groups = rewards_K[firsts[is_of_size, None] + torch.arange(size)]
        means[is_of_size], deviations[is_of_size] = rewards_of_groups.mean(1), rewards_of_groups.std(1)
    return means, deviations


def singleton_groups(groups_K: Sequence[str]) -> Tensor:
    """Return True for each trajectory that is alone in its group, shape (trajectories,)."""
    sizes = Counter(groups_K)
    return torch.tensor([sizes[group] == 1 for group in groups_K], dtype=torch.bool)
