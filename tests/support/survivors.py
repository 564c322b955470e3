"""What failed trajectories did to the others of their run, read from its folder."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import EpisodeRecord, TrajectoryLog

EPSILON = 1e-6
"""What GRPO adds to the standard deviation."""


@dataclass(frozen=True)
class Played:
    """The trajectories that a run learned from, and those that it left out; of runs without a KL penalty."""

    survivors: Mapping[str, EpisodeRecord]
    failed: Mapping[str, EpisodeRecord]
    advantages: Mapping[str, float]
    """As the trainer had them."""

    @classmethod
    def read(cls, run_dir: Path) -> "Played":
        """All steps of a run."""
        log = TrajectoryLog(RunFolder(run_dir))
        training = {episode.name: episode for episode in log.read_episodes() if not episode.validation}
        steps = {turn.step for episode in training.values() for turn in episode.turns}
        return cls(
            survivors={name: episode for name, episode in training.items() if episode.failed_cause is None},
            failed={name: episode for name, episode in training.items() if episode.failed_cause is not None},
            advantages={name: value for step in steps for name, value in log.read_advantages(step).items()},
        )

    def largest_difference(self, rewards: Mapping[str, float] | None = None) -> float:
        """Between the trainer's advantages and those of a group that never had the failed ones.

        `rewards` are those of another run, in which none of these failed; left out, they are the run's own.
        """
        rewards = rewards or {name: episode.reward for name, episode in self.survivors.items()}
        wanted = grpo({name: rewards[name] for name in self.survivors if name in rewards})
        return max(abs(value - self.advantages[name]) for name, value in wanted.items())

    def error_tokens(self, texts: Iterable[str]) -> int:
        """Tokens in contexts that follow a text of this kind."""
        return sum(
            len(turn.observation_ids)
            for episode in (*self.survivors.values(), *self.failed.values())
            for turn in episode.turns
            if any(text in part for text in texts for part in (turn.observation, turn.prompt, turn.response))
        )


def grpo(rewards: Mapping[str, float]) -> dict[str, float]:
    """The advantage of each trajectory in its group, from the rewards alone; names read t{step}-{task}-{sample}."""
    groups: dict[str, list[float]] = defaultdict(list)
    for name, reward in rewards.items():
        groups[_group(name)].append(reward)
    return {name: _advantage(reward, groups[_group(name)]) for name, reward in rewards.items()}


def _group(name: str) -> str:
    return name.rpartition("-")[0]


def _advantage(reward: float, group: list[float]) -> float:
    if len(group) == 1:
        return 0.0
    return (reward - statistics.fmean(group)) / (statistics.stdev(group) + EPSILON)
