"""Compares rewards of environments of verifiers: by verifiers' own runner, and by an agent of type `harness`.

.venv/bin/python benchmarks/verifiers_rewards.py [NAME...]

Both have the same scripted model, which solves some of the tasks. `make harnesses` installs the environments. Prints
the table of docs/harnesses.md, and fails if a reward or a number of turns differs.
"""

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from support.verifiers_environments import SUBJECTS, Subject, evaluate, play
from turnmill.rollout.harness.episode import EpisodeResult


def main() -> None:
    print("| environment | | tasks | turns | sum of rewards by `vf-eval` | by turnmill | equal |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    lines = [compared(SUBJECTS[name]) for name in sys.argv[1:] or SUBJECTS]
    sys.exit(not all(lines))


def compared(subject: Subject) -> bool:
    """Print the line of an environment, and return whether both have the same."""
    with TemporaryDirectory() as folder:
        own = evaluate(subject, Path(folder))
        played = asyncio.run(play(subject, Path(folder)))
    found = [(each.summary.reward, each.summary.num_turns) for each in played if isinstance(each, EpisodeResult)]
    same = found == [(each.reward, each.num_turns) for each in own]
    cells = (
        f"`{subject.task}`", subject.kind, subject.num_tasks, sum(each.num_turns for each in own),
        f"{sum(each.reward for each in own):.4g}", f"{sum(reward for reward, _ in found):.4g}", "all" if same else "no",
    )  # fmt: skip
    print(f"| {' | '.join(map(str, cells))} |", flush=True)
    return same


if __name__ == "__main__":
    main()
