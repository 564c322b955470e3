"""Whether every token that is trained on was sampled, over conversations of random agents at the gateway.

.venv/bin/python benchmarks/gateway_turns.py --turns 1000000

Agents carry on, repeat requests, branch, change and compact their history; the engine samples tokens that a tokenizer
would not give for their text. A quarter of the agents only carries on and repeats: each has one row.
"""

import argparse
import asyncio
import itertools
import time

from runs import table

from support.random_agents import Found, RandomAgent

STEPS = (8, 30, 128)
"""Requests of an agent, in turn."""


async def play(turns: int, first_seed: int) -> tuple[list[Found], list[Found]]:
    """Play agents until there are so many turns; return what became of linear ones and of the others."""
    linear, others, done = [], [], 0
    for seed in itertools.count(first_seed):
        if done >= turns:
            break
        agent = RandomAgent(seed, linear=seed % 4 == 0)
        await agent.play(STEPS[seed % len(STEPS)])
        found = agent.check()
        (linear if agent.linear else others).append(found)
        done += found.turns
    return linear, others


def main() -> None:
    """Play and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first agent")
    arguments = parser.parse_args()
    begun = time.process_time()
    kinds = zip(("linear", "all kinds"), asyncio.run(play(arguments.turns, arguments.seed)), strict=True)
    rows = [
        [
            kind,
            str(len(found)),
            str(sum(each.turns for each in found)),
            str(sum(each.branches for each in found)),
            str(sum(each.rows for each in found)),
            str(sum(each.foreign_tokens for each in found)),
            str(sum(each.lost_tokens for each in found)),
            str(sum(each.other_prompts for each in found)),
            str(sum(each.other_records for each in found)),
        ]
        for kind, found in kinds
    ]
    heads = ["conversations", "agents", "turns", "branches", "rows", "foreign tokens", "lost tokens", "other prompts",
             "other records"]  # fmt: skip
    print(table(heads, rows))
    print(f"{time.process_time() - begun:.0f} s of processor time")


if __name__ == "__main__":
    main()
