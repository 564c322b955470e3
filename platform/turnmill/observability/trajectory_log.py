"""The turns of a run, one line each, in one file per step; written by several processes at once."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from turnmill.core.trajectory import Turn
from turnmill.observability import json_lines
from turnmill.observability.run_folder import RunFolder

TRAINING = "step"
VALIDATION = "validation"
ADVANTAGES = "advantages"


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn as it is kept: what the policy read, said and did, and what it brought."""

    episode: str
    environment: int
    turn: int
    step: int
    policy_version: int
    prompt: str
    response: str
    action: str
    reward: float
    prompt_ids: tuple[int, ...] = ()
    response_ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    valid: bool = True
    done: bool = False
    stop_reason: str | None = None
    observation: str = ""
    failed_cause: str | None = None
    observation_ids: tuple[int, ...] = ()
    """Tokens of the observation, where it follows the response in the same context."""

    stop_detail: str = ""
    """The stop reason in the words of the agent loop."""

    tool: Mapping[str, Any] = field(default_factory=dict)
    """What a tool's observation held besides its text."""

    environment_name: str = ""
    """What kind of environment it is; the first turn of an episode tells it."""

    seed: int | None = None
    """Of the environment."""

    asked_at: float = 0.0
    """When the policy was asked, in seconds since 1970."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    """What its time went to, by what was waited for."""

    mask: tuple[int, ...] = ()
    """How many tokens of the response and the observation are learned from, then how many are not, and so on; left
    out where all of the response are and none of the observation."""

    images: tuple[str, ...] = ()
    """Pictures that the observation held, by their names among the episodes of the run folder."""

    @classmethod
    def of(cls, turn: Turn, /, **facts: Any) -> "TurnRecord":
        """The record of a turn; `facts` are what a turn does not know, and what is told otherwise here."""
        known: dict[str, Any] = {
            "policy_version": turn.policy_version,
            "prompt": turn.prompt_text,
            "response": turn.response_text,
            "action": turn.action,
            "reward": turn.reward,
            "prompt_ids": turn.prompt_ids,
            "response_ids": turn.response_ids,
            "log_probs": turn.log_probs,
            "valid": turn.valid,
            "done": turn.done,
            "observation": turn.observation,
            "observation_ids": turn.observation_ids,
            "asked_at": turn.asked_at,
            "seconds": turn.seconds,
        }
        return cls(**{**known, **facts})

    @classmethod
    def of_failure(cls, cause: str, message: str, **facts: Any) -> "TurnRecord":
        """How an episode ended that something around it broke; it follows the records of its turns."""
        ended: dict[str, Any] = {"done": True, "stop_reason": "failed", "failed_cause": cause, "observation": message}
        return cls(policy_version=0, prompt="", response="", action="", reward=0.0, **ended, **facts)

    @property
    def ends_episode(self) -> bool:
        """Whether no turn of the same episode follows."""
        return self.done or self.stop_reason is not None or self.failed_cause is not None


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """The turns of one episode, in order; they may span several steps."""

    turns: tuple[TurnRecord, ...]
    validation: bool = False

    @property
    def name(self) -> str:
        """What its turns call it."""
        return self.turns[0].episode

    @property
    def reward(self) -> float:
        """The sum over its turns."""
        return sum(turn.reward for turn in self.turns)

    @property
    def failed_cause(self) -> str | None:
        """What broke, if something around the episode did."""
        return self.turns[-1].failed_cause

    @property
    def outcome(self) -> str:
        """`solved`, `unsolved`, `failed` (something around it broke) or `unfinished` (no last turn so far)."""
        last = self.turns[-1]
        if last.failed_cause is not None or last.stop_reason == "failed":
            return "failed"
        if not last.ends_episode:
            return "unfinished"
        return "solved" if last.stop_reason in (None, "completed") and last.reward > 0 else "unsolved"


@dataclass(frozen=True, slots=True)
class EpisodeFilter:
    """Which episodes to show; what is None does not matter."""

    name: str | None = None
    outcome: str | None = None
    step: int | None = None
    validation: bool | None = None
    min_reward: float | None = None
    max_reward: float | None = None

    def accepts(self, episode: EpisodeRecord) -> bool:
        """Whether the episode is one of those asked for; one that spans several steps belongs to each of them."""
        return (
            self.name in (None, episode.name)
            and self.outcome in (None, episode.outcome)
            and self.validation in (None, episode.validation)
            and (self.step is None or any(turn.step == self.step for turn in episode.turns))
            and (self.min_reward is None or episode.reward >= self.min_reward)
            and (self.max_reward is None or episode.reward <= self.max_reward)
        )


class TrajectoryLog:
    """The `trajectories/` of a run folder."""

    def __init__(self, folder: RunFolder) -> None:
        self.path = folder.trajectories

    def append(self, turns: Iterable[TurnRecord], *, validation: bool = False) -> None:
        """Add turns, all those of one step in one write; turns of one episode must come in order."""
        by_step: dict[int, list[TurnRecord]] = defaultdict(list)
        for turn in turns:
            by_step[turn.step].append(turn)
        for step, of_step in by_step.items():
            json_lines.append(self._file(VALIDATION if validation else TRAINING, step), map(_record, of_step))

    def append_advantages(self, step: int, advantages: Mapping[str, float]) -> None:
        """Keep what every trajectory of a step was worth beside the others of its group, by its name."""
        records = ({"episode": name, "advantage": value} for name, value in advantages.items())
        json_lines.append(self._file(ADVANTAGES, step), records)

    def append_token_advantages(self, step: int, advantages: Iterable[tuple[str, int, Sequence[float]]]) -> None:
        """Keep the advantages of the response tokens of a step's turns, by episode and turn, to four digits."""
        records = (
            {"episode": name, "turn": turn, "advantages": [float(f"{value:.4g}") for value in values]}
            for name, turn, values in advantages
        )
        json_lines.append(self._file(ADVANTAGES, step), records)

    def read_advantages(self, step: int) -> dict[str, float]:
        """The advantages of a step's trajectories, by their names; nothing where none are kept."""
        records = json_lines.read(self._file(ADVANTAGES, step), "episode")
        return {str(record["episode"]): _number(record["advantage"]) for record in records if "advantage" in record}

    def rewind(self, step: int) -> None:
        """Forget what came after a step, before a run goes on from its checkpoint."""
        for kind in (TRAINING, VALIDATION, ADVANTAGES):
            for file in self._files(kind):
                if _step_of(file) > step:
                    file.unlink()

    def read_turns(self, *, validation: bool = False) -> Iterator[TurnRecord]:
        """Every whole line so far, step by step."""
        for file in self._files(VALIDATION if validation else TRAINING):
            for record in json_lines.read(file, "episode"):
                turn = decode_turn(record)
                if turn is not None:
                    yield turn

    def read_episodes(self, wanted: EpisodeFilter | None = None) -> Iterator[EpisodeRecord]:
        """The episodes that pass a filter: training, as they ended, then unfinished ones; then validation."""
        wanted = wanted or EpisodeFilter()
        if wanted.validation is not True:
            yield from filter(wanted.accepts, _episodes(self.read_turns(), validation=False))
        if wanted.validation is not False:
            yield from filter(wanted.accepts, _episodes(self.read_turns(validation=True), validation=True))

    def _file(self, kind: str, step: int) -> Path:
        return self.path / f"{kind}-{step:06d}.jsonl"

    def _files(self, kind: str) -> list[Path]:
        return sorted(self.path.glob(f"{kind}-*.jsonl"), key=_step_of)


def _episodes(turns: Iterable[TurnRecord], *, validation: bool) -> Iterator[EpisodeRecord]:
    """Turns put together again; only episodes without a last turn are held in memory."""
    going_on: dict[tuple[int | None, str], list[TurnRecord]] = {}
    for turn in turns:
        # Every validation starts its episodes afresh and may give them the names of the one before.
        key = (turn.step if validation else None, turn.episode)
        going_on.setdefault(key, []).append(turn)
        if turn.ends_episode:
            yield EpisodeRecord(tuple(going_on.pop(key)), validation)
    for unfinished in going_on.values():
        yield EpisodeRecord(tuple(unfinished), validation)


def _step_of(file: Path) -> int:
    return int(file.stem.rpartition("-")[2])


_FIELDS = fields(TurnRecord)
_DEFAULTS = {each.name: each.default for each in _FIELDS if each.default is not MISSING} | {
    each.name: each.default_factory() for each in _FIELDS if each.default_factory is not MISSING
}
_SEQUENCES = ("prompt_ids", "response_ids", "observation_ids", "mask", "images")


def _record(turn: TurnRecord) -> dict[str, Any]:
    """A turn as one object; what is as it mostly is is left out."""
    values = ((each.name, getattr(turn, each.name)) for each in _FIELDS)
    return {name: value for name, value in values if name not in _DEFAULTS or value != _DEFAULTS[name]}


def decode_turn(record: Mapping[str, Any]) -> TurnRecord | None:
    """The turn of one line; None if the line lacks what every turn has."""
    values = {each.name: record[each.name] for each in _FIELDS if each.name in record}
    if any(each.name not in values for each in _FIELDS if each.name not in _DEFAULTS):
        return None
    for name in _SEQUENCES:
        values[name] = tuple(values.get(name, ()))
    values["log_probs"] = tuple(map(_number, values.get("log_probs", ())))
    values["reward"] = _number(values["reward"])
    return TurnRecord(**values)


def _number(value: float | None) -> float:
    """A number of a line; JSON has no word for what is none."""
    return math.nan if value is None else value
