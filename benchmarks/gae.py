"""Dual-discount GAE at 128 environments, 16 turns and 512 tokens, on one core; beside it, the loop over tokens.

OMP_NUM_THREADS=1 .venv/bin/python benchmarks/gae.py
"""

import statistics
import time
from collections.abc import Callable

import torch
from runs import table

from turnmill.training.advantages.gae import dual_discount_gae

ENVIRONMENTS, TURNS, TOKENS, REPEATS = 128, 16, 512, 15
DISCOUNTS = {"token_gamma": 1.0, "token_lambda": 1.0, "step_gamma": 0.99, "step_lambda": 0.95}


def loop(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, dones: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token of all environments at a time, as the recursion is written down; full masks."""
    advantages = torch.zeros_like(values)
    next_value, running = values[-ENVIRONMENTS:, 0], torch.zeros(ENVIRONMENTS, dtype=values.dtype)
    for t in reversed(range(TURNS)):
        rows = slice(t * ENVIRONMENTS, (t + 1) * ENVIRONMENTS)
        gamma, lam, alive = DISCOUNTS["step_gamma"], DISCOUNTS["step_lambda"], 1 - dones[rows].to(values.dtype)
        for token in reversed(range(TOKENS)):
            running = (
                rewards[rows, token] + gamma * next_value * alive - values[rows, token] + gamma * lam * alive * running
            )
            next_value, advantages[rows, token] = values[rows, token], running
            gamma, lam, alive = (
                DISCOUNTS["token_gamma"],
                DISCOUNTS["token_lambda"],
                torch.ones(ENVIRONMENTS, dtype=values.dtype),
            )
    return advantages, advantages + values


def milliseconds(run: Callable[[], object]) -> float:
    """The median of some runs after the first."""
    times = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        run()
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times[1:])


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = ((TURNS + 1) * ENVIRONMENTS, TOKENS)
    rewards, values = torch.randn(shape), torch.randn(shape)
    mask, dones = torch.ones(shape), (torch.rand(shape[0]) < 0.1).long()
    ours = lambda: dual_discount_gae(rewards, values, mask, dones, num_environments=ENVIRONMENTS, **DISCOUNTS)  # noqa: E731
    ragged = torch.arange(TOKENS) < torch.randint(1, TOKENS + 1, (shape[0], 1))
    masked = lambda: dual_discount_gae(  # noqa: E731
        rewards, values, ragged.float(), dones, num_environments=ENVIRONMENTS, **DISCOUNTS
    )
    exact = [tensor.double() for tensor in (rewards, values, mask)]
    advantages, _ = dual_discount_gae(*exact, dones, num_environments=ENVIRONMENTS, **DISCOUNTS)
    difference = (advantages - loop(*exact, dones)[0])[: TURNS * ENVIRONMENTS].abs().max()
    print(
        table(
            ["", "ms (median)"],
            [
                ["dual_discount_gae, full responses", f"{milliseconds(ours):.1f}"],
                ["dual_discount_gae, responses of all lengths", f"{milliseconds(masked):.1f}"],
                ["loop over tokens", f"{milliseconds(lambda: loop(rewards, values, mask, dones)):.0f}"],
            ],
        )
    )
    print(f"largest difference in float64 {difference:.1e}")


if __name__ == "__main__":
    main()
