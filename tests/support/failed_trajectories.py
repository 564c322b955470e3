"""The effect of failed trajectories on the advantages of the others, read from a run folder."""

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
class RunTrajectories:
    """The trajectories that a run learned from, those that failed, and the trainer's advantages; no KL penalty."""

    learned: Mapping[str, EpisodeRecord]
    failed: Mapping[str, EpisodeRecord]
    advantages: Mapping[str, float]
    """The advantages that the trainer computed."""

    @classmethod
    def read(cls, run_dir: Path) -> "RunTrajectories":
        """Read all steps of a run."""
        log = TrajectoryLog(RunFolder(run_dir))
        training = {episode.name: episode for episode in log.read_episodes() if not episode.validation}
        steps = {turn.step for episode in training.values() for turn in episode.turns}
        return cls(
            learned={name: episode for name, episode in training.items() if episode.failed_cause is None},
            failed={name: episode for name, episode in training.items() if episode.failed_cause is not None},
            advantages={name: value for step in steps for name, value in log.advantages.read(step).items()},
        )

    def largest_difference(self, rewards: Mapping[str, float] | None = None) -> float:
        """Return the largest difference from the advantages of groups without the failed trajectories.

        `rewards` are those of another run in which none of them failed; by default, the rewards of this run.
        """
        rewards = rewards or {name: episode.reward for name, episode in self.learned.items()}
        expected = grpo({name: rewards[name] for name in self.learned if name in rewards})
        return max(abs(value - self.advantages[name]) for name, value in expected.items())

    def error_tokens(self, texts: Iterable[str]) -> int:
        """Return the number of observation tokens in turns that contain one of the texts."""
        return sum(
            len(turn.observation_ids)
            for episode in (*self.learned.values(), *self.failed.values())
            for turn in episode.turns
            if any(text in part for text in texts for part in (turn.observation, turn.prompt, turn.response))
        )


def grpo(rewards: Mapping[str, float]) -> dict[str, float]:
    """Return each trajectory's advantage in its group from the rewards; names are t{step}-{task}-{sample}."""
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
