"""Checks and their results."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from turnmill.jobs import AgentTrainingJob

Status = Literal["ok", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Peers:
    """Machines of a check that all of them make together."""

    number: int
    rank: int
    """Which of them this machine is, from 0."""

    master: str
    """Host and port at which the first one waits for the others."""

    seconds: float = 300.0
    """Time for all of them to come, as pods may start minutes apart, and for each message."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What is checked: this machine, and the folder in which its runs are kept."""

    device: Literal["cpu", "cuda"]
    storage: Path
    job: AgentTrainingJob | None = None
    scratch: Path = field(default=Path())
    """Folder in the storage for what the checks write."""

    peers: Peers | None = None
    """Other machines, if the links between them are to be checked."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one check."""

    check: str
    status: Status
    found: str
    """What was found: versions, sizes, rates, or the reason of a failure."""

    way_out: str = ""
    """What to do after a failure."""

    seconds: float = 0.0


class CheckFailedError(Exception):
    """What a check found keeps jobs from training; `way_out` says what to do."""

    def __init__(self, found: str, way_out: str) -> None:
        super().__init__(found)
        self.found = found
        self.way_out = way_out

    def __reduce__(self) -> tuple[type["CheckFailedError"], tuple[str, str]]:
        """Keep `way_out` when pickled: exceptions pickle only their `args`."""
        return type(self), (self.found, self.way_out)


class CheckSkippedError(Exception):
    """The check does not apply to this machine."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: a function that returns what it found, or raises CheckFailedError or CheckSkippedError."""

    name: str
    run: Callable[[Machine], str]
    seconds: float
    """Limit of its duration."""

    needs: tuple[str, ...] = ()
    """Checks that must not have failed, or this one is skipped."""

    trains: bool = False
    """True if it starts runs, which takes minutes."""
