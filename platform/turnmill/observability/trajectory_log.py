"""Log of a run's turns, one JSON object per line, written by several processes at once."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from turnmill.core.trajectory import Turn
from turnmill.observability import atomic_files, json_lines
from turnmill.observability.advantage_log import AdvantageLog
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_files import SUFFIX, TRAINING, VALIDATION, LogFile, is_sampled, turns_file


@dataclass(frozen=True, slots=True)
class TurnPosition:
    """Position of a turn in a run."""

    episode_id: str
    environment: int
    """Number of the environment slot or of the task."""

    turn: int
    step: int
    environment_name: str = ""
    """Name of the environment; only the first turn of an episode has it."""

    seed: int | None = None
    """Seed of the environment."""


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One line of the log: a turn with its prompt, response, action and observation."""

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
    """Tokens of the observation, if it follows the response in the same context."""

    stop_detail: str = ""
    """More specific stop reason of the agent loop."""

    tool: Mapping[str, object] = field(default_factory=dict)
    """Fields of a tool's observation other than its text."""

    environment_name: str = ""
    """Name of the environment; only the first turn of an episode has it."""

    seed: int | None = None
    """Seed of the environment."""

    asked_at: float = 0.0
    """Start of the generation, in seconds since 1970."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds spent waiting for generation and for tools."""

    mask: tuple[int, ...] = ()
    """Run lengths of the response mask over response and observation, beginning with tokens that are trained on; empty
    if all of the response and none of the observation is."""

    images: tuple[str, ...] = ()
    """File names of the observation's images in the folder `episodes/` of the run."""

    parent: int | None = None
    """Number of the turn that this one continues: None for the one before, -1 for none, -2 for one not recorded."""

    @classmethod
    def of(cls, turn: Turn, position: TurnPosition) -> "TurnRecord":
        """Return the record of a turn at a position."""
        return cls(
            episode=position.episode_id,
            environment=position.environment,
            turn=position.turn,
            step=position.step,
            policy_version=turn.policy_version,
            prompt=turn.prompt_text,
            response=turn.response_text,
            action=turn.action,
            reward=turn.reward,
            prompt_ids=turn.prompt_ids,
            response_ids=turn.response_ids,
            log_probs=turn.log_probs,
            valid=turn.valid,
            done=turn.done,
            observation=turn.observation,
            observation_ids=turn.observation_ids,
            environment_name=position.environment_name,
            seed=position.seed,
            asked_at=turn.asked_at,
            seconds=turn.seconds,
        )

    @classmethod
    def of_failure(cls, cause: str, message: str, position: TurnPosition) -> "TurnRecord":
        """Return the record that ends a failed episode; it follows the records of its turns."""
        return cls(
            episode=position.episode_id,
            environment=position.environment,
            turn=position.turn,
            step=position.step,
            policy_version=0,
            prompt="",
            response="",
            action="",
            reward=0.0,
            done=True,
            stop_reason="failed",
            observation=message,
            failed_cause=cause,
            environment_name=position.environment_name,
            seed=position.seed,
        )

    @property
    def ends_episode(self) -> bool:
        """True if no turn of the same episode follows."""
        return self.done or self.stop_reason is not None or self.failed_cause is not None


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """Turns of one episode, in order; they may span several steps."""

    turns: tuple[TurnRecord, ...]
    validation: bool = False

    @property
    def name(self) -> str:
        """Id of the episode."""
        return self.turns[0].episode

    @property
    def reward(self) -> float:
        """Sum of the rewards of its turns."""
        return sum(turn.reward for turn in self.turns)

    @property
    def failed_cause(self) -> str | None:
        """Kind of infrastructure that failed; None if none did."""
        return self.turns[-1].failed_cause

    @property
    def outcome(self) -> str:
        """`solved`, `unsolved`, `failed` (because of infrastructure) or `unfinished` (its last turn is missing)."""
        last = self.turns[-1]
        if last.failed_cause is not None or last.stop_reason == "failed":
            return "failed"
        if not last.ends_episode:
            return "unfinished"
        return "solved" if last.stop_reason in (None, "completed") and last.reward > 0 else "unsolved"


@dataclass(frozen=True, slots=True)
class EpisodeFilter:
    """Conditions on episodes; None accepts any value."""

    name: str | None = None
    outcome: str | None = None
    step: int | None = None
    validation: bool | None = None
    min_reward: float | None = None
    max_reward: float | None = None

    def accepts(self, episode: EpisodeRecord) -> bool:
        """Return True if an episode meets the conditions; one that spans several steps belongs to each of them."""
        return (
            self.name in (None, episode.name)
            and self.outcome in (None, episode.outcome)
            and self.validation in (None, episode.validation)
            and (self.step is None or any(turn.step == self.step for turn in episode.turns))
            and (self.min_reward is None or episode.reward >= self.min_reward)
            and (self.max_reward is None or episode.reward <= self.max_reward)
        )


class TrajectoryLog:
    """The folder `trajectories/` of a run folder; `sample_share` is the share of tasks whose turns are recorded."""

    def __init__(self, folder: RunFolder, *, sample_share: float = 1.0) -> None:
        self.path = folder.trajectories
        self.advantages = AdvantageLog(self.path)
        self.sample_share = sample_share

    def append(self, turns: Iterable[TurnRecord], *, validation: bool = False) -> None:
        """Append turns, those of one step in one write; turns of an episode must be in order.

        Turns outside the sample are left out, unless they come with their episode's failure or are a validation's.
        """
        turns = list(turns)
        sampled = any(turn.failed_cause or is_sampled(turn.episode, self.sample_share) for turn in turns)
        if not validation and not sampled:
            return
        by_step: dict[int, list[TurnRecord]] = defaultdict(list)
        for turn in turns:
            by_step[turn.step].append(turn)
        for step, of_step in by_step.items():
            file = self.path / turns_file(VALIDATION if validation else TRAINING, step)
            json_lines.append(file, map(_record, of_step), patience=atomic_files.PATIENCE)

    def rewind(self, step: int) -> None:
        """Delete the records of later steps, before a run resumes from its checkpoint."""
        for kind in (TRAINING, VALIDATION):
            for log_file in self._files(kind):
                if log_file.step > step:
                    (self.path / log_file.name).unlink()
        self.advantages.rewind(step)

    def drop_before(self, step: int) -> None:
        """Delete the records of earlier steps; those of validations are kept."""
        for log_file in self._files(TRAINING):
            if log_file.step < step:
                (self.path / log_file.name).unlink(missing_ok=True)
        self.advantages.drop_before(step)

    def read_turns(self, *, validation: bool = False) -> Iterator[TurnRecord]:
        """Return the turns of all complete lines so far, step by step."""
        yield from self._turns_of(self._files(VALIDATION if validation else TRAINING))

    def read_validation(self, step: int) -> Iterator[EpisodeRecord]:
        """Yield the episodes of one validation; none if it has no file."""
        files = [log_file for log_file in self._files(VALIDATION) if log_file.step == step]
        yield from _episodes(self._turns_of(files), validation=True)

    def read_episodes(self, wanted: EpisodeFilter | None = None) -> Iterator[EpisodeRecord]:
        """Yield the episodes that pass a filter: of training in the order of their ends, unfinished, of validation."""
        wanted = wanted or EpisodeFilter()
        if wanted.validation is not True:
            yield from filter(wanted.accepts, _episodes(self.read_turns(), validation=False))
        if wanted.validation is not False:
            yield from filter(wanted.accepts, _episodes(self.read_turns(validation=True), validation=True))

    def _files(self, kind: str) -> list[LogFile]:
        found = (LogFile.named(path.name) for path in self.path.glob(f"{kind}-*{SUFFIX}"))
        return sorted(log_file for log_file in found if log_file is not None)

    def _turns_of(self, files: Iterable[LogFile]) -> Iterator[TurnRecord]:
        for log_file in files:
            for record in json_lines.read(self.path / log_file.name, "episode"):
                if (turn := decode_turn(record)) is not None:
                    yield turn


def _episodes(turns: Iterable[TurnRecord], *, validation: bool) -> Iterator[EpisodeRecord]:
    """Group turns by episode; only episodes without a last turn are held in memory."""
    going_on: dict[tuple[int | None, str], list[TurnRecord]] = {}
    for turn in turns:
        # Every validation starts its episodes afresh and may give them the names of the one before.
        key = (turn.step if validation else None, turn.episode)
        going_on.setdefault(key, []).append(turn)
        if turn.ends_episode:
            yield EpisodeRecord(tuple(going_on.pop(key)), validation)
    yield from (EpisodeRecord(tuple(unfinished), validation) for unfinished in going_on.values())


_FIELDS = fields(TurnRecord)
_DEFAULTS = {each.name: each.default for each in _FIELDS if each.default is not MISSING} | {
    each.name: each.default_factory() for each in _FIELDS if each.default_factory is not MISSING
}
_SEQUENCES = ("prompt_ids", "response_ids", "observation_ids", "mask", "images")


def _record(turn: TurnRecord) -> dict[str, Any]:
    """Return a turn as a JSON object, without fields that have their defaults."""
    values = ((each.name, getattr(turn, each.name)) for each in _FIELDS)
    return {name: value for name, value in values if name not in _DEFAULTS or value != _DEFAULTS[name]}


def decode_turn(record: Mapping[str, Any]) -> TurnRecord | None:
    """Return the turn of one line; None if a required field is missing."""
    values = {each.name: record[each.name] for each in _FIELDS if each.name in record}
    if any(each.name not in values for each in _FIELDS if each.name not in _DEFAULTS):
        return None
    for name in _SEQUENCES:
        values[name] = tuple(values.get(name, ()))
    values["log_probs"] = tuple(map(_number, values.get("log_probs", ())))
    values["reward"] = _number(values["reward"])
    return TurnRecord(**values)


def _number(value: float | None) -> float:
    """Return a number of a line, in which null stands for NaN."""
    return math.nan if value is None else value
