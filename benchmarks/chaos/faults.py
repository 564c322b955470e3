"""The faults, and the moments at which they are injected."""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

UNDISTURBED = "none"
FIRST, LAST = 0.05, 0.75
"""Part of the undisturbed training in which a fault may come: enough is left to show how a run goes on."""

ALL, AROUND, CENTRE = "all", "around", "centre"
"""Groups of faults that come again and again: all, those that leave trainer and engine alone, and the others."""

CENTRE_PARTS = ("trainer", "engine", "engine core")
UNGROUPED = ("Ray node", "Ray controller", "queue")
"""Parts whose faults are in no group but that of their own name: each ends an attempt, as the trainer's do."""

ONCE = ("store tail lost", "transfer cut")
"""Faults that are in no group but that of their own name either: one undoes what the store has confirmed, one waits for
a moment of its own."""

LONGEST_PART = 0.5
"""Part of the time between two faults that one of them lasts at most."""

SPELL_SECONDS = 20.0
"""How long calls fail where faults are repeated."""


@dataclass(frozen=True)
class Fault:
    """One kind of fault."""

    name: str
    does: str
    part: str = ""
    """The kind of process that gets a signal."""

    signal: str = ""
    seconds: float = 0.0
    """How long it lasts; 0 for one that does not pass, or is over at once."""

    needs_proxy: bool = False
    """Whether calls of tools go through a proxy that fails some."""

    needs_store: bool = False
    """Whether the run gets a store whose connections, answers and log are in the benchmark's hands."""


PARTS = {
    "trainer": "the trainer's process",
    "engine": "the process of an inference engine's server",
    "engine core": "the process in which the engine computes",
    "agent loop": "a worker of agent loops",
    "tool server": "the tool server",
    "store": "the trajectory store",
    "environment": "a process in which an environment runs",
    "Ray node": "the node of Ray (raylet)",
    "Ray controller": "the controller of Ray's cluster (gcs_server)",
    "queue": "a process of the queue between rollout and training",
}

FAULTS = (
    *(Fault(f"kill {part}", f"SIGKILL of {what}", part, "SIGKILL") for part, what in PARTS.items()),
    *(Fault(f"stop {part}", f"SIGSTOP of {what}, for good", part, "SIGSTOP") for part, what in PARTS.items()),
    Fault("store slow", "each answer of the store takes 200 ms more, for 20 s", seconds=20, needs_store=True),
    Fault("store cut", "connections to the store are closed, and refused for 15 s", seconds=15, needs_store=True),
    Fault("store tail lost", "the store is killed, and comes back without its last second", needs_store=True),
    Fault("calls fail", "15 % of the calls fail: half with 503, half after they took effect", needs_proxy=True),
    Fault("call unanswered", "from then on, calls of one trajectory have no answer", needs_proxy=True),
    Fault("disk full", "no space where the run keeps its files, for 20 s", seconds=20),
    Fault("clock step", "the time of day jumps by an hour, forward or back"),
    Fault("transfer cut", "SIGKILL of the engine's core as weights are handed to it", "engine core", "SIGKILL"),
)  # fmt: skip

NAMES = (UNDISTURBED, *(fault.name for fault in FAULTS))


def fault(name: str) -> Fault:
    """Return the fault of this name."""
    return next((each for each in FAULTS if each.name == name), Fault(UNDISTURBED, "nothing is injected"))


def chance(name: str, seed: int) -> random.Random:
    """Return the random numbers of a fault and a seed."""
    return random.Random(f"{name}/{seed}")


def moment(name: str, seed: int, window: float) -> float:
    """Return the seconds from the first call of a tool to the fault, within an undisturbed training of `window`."""
    return chance(name, seed).uniform(FIRST, LAST) * window


def repeated(group: str, faults: Sequence[Fault]) -> list[Fault]:
    """Return those faults of a system that are repeated in a group: that with its name, or all that begin with it."""
    if own := [each for each in faults if each.name == group]:
        return own
    names = [each for each in faults if each.name not in ONCE and each.part not in UNGROUPED]
    if group == ALL:
        return names
    if group in (AROUND, CENTRE):
        return [each for each in names if (each.part in CENTRE_PARTS) == (group == CENTRE)]
    return [each for each in names if each.name.startswith(group)]


def lasting(fault: Fault, every: float) -> float:
    """Return the seconds that a fault lasts which comes every so many seconds; 0 for one that is over at once."""
    seconds = SPELL_SECONDS if fault.name == "calls fail" else fault.seconds
    return min(seconds, every * LONGEST_PART)


def draws(seed: int, every: float, faults: Sequence[Fault]) -> Iterator[tuple[float, list[Fault]]]:
    """Yield, without end, a moment of each interval and all faults in the order of the draw.

    The first one comes; the others are for the case that it finds nothing to hurt, such as a process that is only being
    started.
    """
    chance = random.Random(f"every {every:g} s/{seed}")
    for number in itertools.count():
        yield (number + chance.random()) * every, chance.sample(faults, len(faults))
