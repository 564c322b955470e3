"""Breakdown of a step's time into parts that sum to the step."""

from collections.abc import Mapping

from turnmill.observability.summary import LEARNING

PARTS = ("generation", "tools", "loop", "stragglers", "weight_sync", "learning", "checkpoint", "other")

SECONDS = "timing_s/"
ROLLOUT = "turnmill/rollout_seconds/"
"""Prefix of the seconds spent on generation, tools and the rest of the agent loop, summed over trajectories."""

SLOTS = "turnmill/rollout_slots"
"""Number of trajectories in flight at the same time."""

IN_FLIGHT = ("generation", "tools", "loop")
WAITING = "gen"
RELEASE = "release_rollout"
"""Part of `gen`: releasing the devices from inference after the last turn."""


def split_step_time(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of a step by part.

    The trainer's waiting time is divided in proportion to what the slots of trajectories were doing. A slot is idle
    from the end of its trajectory to the end of the last one; that part is `stragglers`.
    """
    step = metrics.get(f"{SECONDS}step", 0.0)
    release = metrics.get(f"{SECONDS}{RELEASE}", 0.0)
    waiting = max(0.0, metrics.get(f"{SECONDS}{WAITING}", 0.0) - release)
    parts = {
        **_split_wait(waiting, metrics),
        "weight_sync": release + metrics.get(f"{SECONDS}update_weights", 0.0),
        "learning": sum(metrics.get(f"{SECONDS}{phase}", 0.0) for phase in LEARNING),
        "checkpoint": metrics.get(f"{SECONDS}save_checkpoint", 0.0),
    }
    known = sum(parts.values())
    if known > step:
        # Overlapping phases would be counted twice.
        return {part: parts.get(part, 0.0) * step / known for part in PARTS}
    parts["other"] = parts.get("other", 0.0) + step - known
    return {part: parts.get(part, 0.0) for part in PARTS}


def _split_wait(waiting: float, metrics: Mapping[str, float]) -> dict[str, float]:
    slots = metrics.get(SLOTS, 0.0)
    busy = {part: metrics.get(f"{ROLLOUT}{part}", 0.0) for part in IN_FLIGHT}
    total = sum(busy.values())
    if slots <= 0 or total <= 0:
        return {"other": waiting}
    # In the asynchronous modes rollout began before the wait, and more work was done than waited for.
    accounted = min(waiting, total / slots)
    return {part: accounted * (seconds / total) for part, seconds in busy.items()} | {"stragglers": waiting - accounted}
