"""Where the time of a step goes, in parts that sum to the step."""

from collections.abc import Mapping

from turnmill.observability.summary import LEARNING

PARTS = ("generation", "tools", "loop", "stragglers", "weight_sync", "learning", "checkpoint", "other")

SECONDS = "timing_s/"
ROLLOUT = "turnmill/rollout_seconds/"
"""Seconds that trajectories spent on generation, tools and the rest of the agent loop, added up over all of them."""

SLOTS = "turnmill/rollout_slots"
"""Trajectories that were in flight at once."""

IN_FLIGHT = ("generation", "tools", "loop")
WAITING = "gen"
RELEASE = "release_rollout"
"""Within `gen`: taking the devices back from inference once the turns are there."""


def step_parts(metrics: Mapping[str, float]) -> dict[str, float]:
    """Seconds of a step by part.

    While the trainer waits for turns, the wait is shared out by what the places for trajectories were busy with; a
    place whose trajectory has ended stands idle until the last one ends, which is what stragglers cost.
    """
    step = metrics.get(f"{SECONDS}step", 0.0)
    release = metrics.get(f"{SECONDS}{RELEASE}", 0.0)
    waiting = max(0.0, metrics.get(f"{SECONDS}{WAITING}", 0.0) - release)
    parts = {
        **_waiting_parts(waiting, metrics),
        "weight_sync": release + metrics.get(f"{SECONDS}update_weights", 0.0),
        "learning": sum(metrics.get(f"{SECONDS}{phase}", 0.0) for phase in LEARNING),
        "checkpoint": metrics.get(f"{SECONDS}save_checkpoint", 0.0),
    }
    known = sum(parts.values())
    if known > step:
        # Phases that overlap would count twice.
        return {part: parts.get(part, 0.0) * step / known for part in PARTS}
    parts["other"] = parts.get("other", 0.0) + step - known
    return {part: parts.get(part, 0.0) for part in PARTS}


def _waiting_parts(waiting: float, metrics: Mapping[str, float]) -> dict[str, float]:
    slots = metrics.get(SLOTS, 0.0)
    busy = {part: metrics.get(f"{ROLLOUT}{part}", 0.0) for part in IN_FLIGHT}
    total = sum(busy.values())
    if slots <= 0 or total <= 0:
        return {"other": waiting}
    # Where rollout began before the wait, as it does in the asynchronous modes, more was done than waited for.
    scale = min(1 / slots, waiting / total)
    parts = {part: seconds * scale for part, seconds in busy.items()}
    # Where all of the wait is shared out, rounding may leave a little less than nothing.
    return parts | {"stragglers": max(0.0, waiting - total * scale)}
