"""What a run shows: how it ended, what it lost, what a fault has faked. Nothing here starts or touches a process."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

EPSILON = 1e-6
"""What GRPO adds to the standard deviation of a group."""


@dataclass(frozen=True)
class Played:
    """A trajectory as a system learned from it, or left it out."""

    reward: float
    learned: bool = True
    advantage: float | None = None
    """The advantage that the system computed; None if it records none."""


@dataclass(frozen=True)
class Record:
    """One run as it was watched; times are seconds since its start."""

    exit_code: int | None
    """None if it was ended for its lack of progress, or for its length."""

    silent_seconds: float
    """Time without progress before the end."""

    seconds: float
    first_effect: float | None
    steps: Sequence[float]
    """When each step was complete for the first time."""

    faults: Sequence[float]
    """When the fault was injected."""

    effects: Sequence[tuple[str, int, str]]
    """Trajectory, number and idempotency key of each execution of a call that came as far as its effect."""

    played: Mapping[str, Played]
    note: str = ""
    """The last words of a run that failed."""

    kinds: Sequence[str] = ()
    """The fault at each time in `faults`."""

    step_times: Sequence[float] = ()
    """Seconds of each complete step by the clock of the run; empty if it notes none."""

    unanswered: Sequence[str] | None = None
    """Trajectories whose calls the benchmark left without an answer; None in an older record."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Record":
        """Return a record that was written as JSON."""
        played = {name: Played(**each) for name, each in data["played"].items()}
        effects = [(trajectory, call, key) for trajectory, call, key in data["effects"]]
        return cls(**{**data, "played": played, "effects": effects})


@dataclass(frozen=True)
class Measured:
    """The measures of a run beside those of an undisturbed one."""

    outcome: str
    steps: int
    turns_lost: int
    calls_repeated: int
    """Executions of a call that had been executed before."""

    effects_repeated: int
    """Those of them that a service which knows idempotency keys could not tell from another call."""

    rewards_faked: int
    left_out: int
    """Trajectories from which nothing was learned."""

    advantage_change: float
    recover_seconds: float | None
    """From the (first) fault to the next complete step; None if there was none."""

    step_seconds: float
    """Median of the undisturbed run, to be compared with `recover_seconds`."""

    ettr: float
    seconds: float
    moments: Sequence[float] = field(default=())
    note: str = ""
    left_out_answered: int | None = None
    """Those of `left_out` whose calls were answered; None in an older result."""


def measure(record: Record, undisturbed: Record, *, steps: int, hang_seconds: float) -> Measured:
    """Compare a run with the undisturbed one of the same system and seed."""
    left_out = {name for name, each in record.played.items() if not each.learned}
    return Measured(
        outcome=outcome(record, steps, hang_seconds),
        steps=len(record.steps),
        turns_lost=len(record.effects) - len(learned_calls(record)),
        calls_repeated=repeated(record.effects),
        effects_repeated=repeated(dict.fromkeys(record.effects)),
        rewards_faked=len(faked(record.played, undisturbed.played)),
        left_out=len(left_out),
        advantage_change=advantage_change(record.played, undisturbed.played),
        recover_seconds=recover_seconds(record),
        step_seconds=round(step_seconds(undisturbed), 2),
        ettr=round(ettr(record, undisturbed), 4),
        seconds=round(record.seconds, 1),
        moments=[round(moment, 1) for moment in record.faults],
        note=record.note,
        left_out_answered=None if record.unanswered is None else len(left_out.difference(record.unanswered)),
    )


def outcome(record: Record, steps: int, hang_seconds: float) -> str:
    """Return `ended`, `gave up`, `hung` or, if it went on for too long, `too long`."""
    if record.exit_code is None:
        return "hung" if record.silent_seconds >= hang_seconds else "too long"
    return "ended" if record.exit_code == 0 and len(record.steps) >= steps else "gave up"


def learned_calls(record: Record) -> set[tuple[str, int]]:
    """Return the calls, each once, of trajectories that the run learned from."""
    return {(name, call) for name, call, _ in record.effects if name in record.played and record.played[name].learned}


def repeated(effects: Iterable[tuple[str, int, str]]) -> int:
    """Return how many executions are of a call that had been executed before."""
    return sum(count - 1 for count in Counter((name, call) for name, call, _ in effects).values())


def faked(played: Mapping[str, Played], undisturbed: Mapping[str, Played]) -> list[str]:
    """Return the trajectories that were learned from with another reward than they have without the fault."""
    return sorted(
        name
        for name, each in played.items()
        if each.learned and name in undisturbed and abs(each.reward - undisturbed[name].reward) > 1e-6
    )


def advantage_change(played: Mapping[str, Played], undisturbed: Mapping[str, Played]) -> float:
    """Return the largest change of an advantage that a touched trajectory caused in an untouched one.

    The expected advantage is that in the group of the untouched ones alone, with the rewards of the undisturbed run.
    """
    wrong = set(faked(played, undisturbed))
    untouched = {name for name, each in played.items() if each.learned and name in undisturbed and name not in wrong}
    learned = {name: each.reward for name, each in played.items() if each.learned}
    expected = grpo({name: undisturbed[name].reward for name in untouched})
    computed = grpo(learned)
    changes = [0.0]
    for name in untouched:
        recorded = played[name].advantage
        changes.append(abs((computed[name] if recorded is None else recorded) - expected[name]))
    return float(f"{max(changes):.2g}")


def grpo(rewards: Mapping[str, float]) -> dict[str, float]:
    """Return each trajectory's advantage in its group; the name of a group is that of its trajectories up to `-`."""
    groups: dict[str, list[float]] = defaultdict(list)
    for name, reward in rewards.items():
        groups[name.rpartition("-")[0]].append(reward)
    return {name: _advantage(reward, groups[name.rpartition("-")[0]]) for name, reward in rewards.items()}


def _advantage(reward: float, group: Sequence[float]) -> float:
    if len(group) == 1:
        return 0.0
    return (reward - statistics.fmean(group)) / (statistics.stdev(group) + EPSILON)


def recover_seconds(record: Record) -> float | None:
    """Return the time from the first fault to the end of the next step."""
    if not record.faults:
        return None
    later = [time for time in record.steps if time >= record.faults[0]]
    return round(min(later) - record.faults[0], 1) if later else None


def step_seconds(record: Record) -> float:
    """Return the median time between the ends of two steps."""
    gaps = [after - before for before, after in zip(record.steps, record.steps[1:], strict=False)]
    return statistics.median(gaps) if gaps else 0.0


def window(record: Record) -> float:
    """Return the time from the first call of a tool to the end of the last step."""
    if record.first_effect is None or not record.steps:
        return 0.0
    return record.steps[-1] - record.first_effect


def ettr(record: Record, undisturbed: Record) -> float:
    """Return the time that the complete steps take undisturbed, as a share of what they took here.

    Both begin with the first call of a tool: starts are not training. The time of a run that did not get as far as its
    last step goes to its end, its time without progress included.
    """
    if record.first_effect is None or not record.steps:
        return 0.0
    useful = window(undisturbed) * min(1.0, len(record.steps) / len(undisturbed.steps))
    spent = spent_seconds(record, len(undisturbed.steps))
    return min(1.0, useful / spent) if spent > 0 else 0.0


def spent_seconds(record: Record, steps: int) -> float:
    """Return the time from the first call of a tool to the last of so many steps, or to the end of a run without it."""
    if record.first_effect is None:
        return 0.0
    whole = len(record.steps) >= steps
    return (record.steps[-1] if whole else record.seconds) - record.first_effect


def own_ettr(record: Record, steps: int) -> float | None:
    """Return the time of the complete steps by the run's own clock as a share of the whole; None if it notes none.

    A step that was done again counts once, with its last time; one that a fault made slow counts as it was.
    """
    spent = spent_seconds(record, steps)
    return min(1.0, sum(record.step_times) / spent) if record.step_times and spent > 0 else None


def lost_seconds(record: Record, calm: Record) -> list[float]:
    """Return for each fault how much longer steps took because of it than those of the undisturbed run `calm`.

    The first step is compared with the first, in which rollout has no rows ahead; others with the median. A step's
    delay is that of the faults in it, in equal parts; without one, of the last fault before. The end of a run that
    failed is that of a step.
    """
    lost = [0.0] * len(record.faults)
    usual = step_seconds(calm)
    expected = calm.steps[0] - (calm.first_effect or 0.0) if calm.steps else usual
    begin = record.first_effect or 0.0
    for end in (*record.steps, *([] if record.exit_code == 0 else [record.seconds])):
        before = [number for number, moment in enumerate(record.faults) if moment < end]
        blamed = [number for number in before if record.faults[number] >= begin] or before[-1:]
        for number in blamed:
            lost[number] += (end - begin - expected) / len(blamed)
        begin, expected = end, usual
    return lost
