"""Checkpoints, which are marked when they are complete and read only if they are."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from turnmill.observability import atomic_files
from turnmill.rollout.verlog.slot import SlotState

MARKER = "complete.json"


@dataclass(frozen=True)
class RunState:
    """State of a run in a checkpoint, in addition to weights and optimizers."""

    step: int
    slots: tuple[SlotState, ...]
    kl_coefficient: float


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    path: Path
    state: RunState


def folder_of(root: Path, step: int) -> Path:
    """Return the folder of verl's checkpoint of a step."""
    return root / f"global_step_{step}"


def complete(root: Path, state: RunState, *, keep: int) -> None:
    """Mark the checkpoint of `state.step` complete, then delete all but the newest `keep` complete ones."""
    marker = folder_of(root, state.step) / MARKER
    atomic_files.write_text(marker, json.dumps(asdict(state)))
    for old in list(_newest_first(root))[keep:]:
        # The marker is deleted first, so that no run resumes from a half-deleted checkpoint.
        (old.path / MARKER).unlink()
        shutil.rmtree(old.path)


def latest(root: Path) -> Checkpoint | None:
    """Return the newest complete checkpoint, or None."""
    return next(_newest_first(root), None)


def discard_incomplete(root: Path) -> None:
    """Delete checkpoints that a killed run left incomplete."""
    for path in root.glob("global_step_*"):
        if not (path / MARKER).exists():
            shutil.rmtree(path)


def _newest_first(root: Path) -> Iterator[Checkpoint]:
    folders = [path for path in root.glob("global_step_*") if (path / MARKER).exists()]
    for path in sorted(folders, key=lambda p: int(p.name.rsplit("_", 1)[1]), reverse=True):
        record = json.loads((path / MARKER).read_text())
        slots = tuple(SlotState(**{**slot, "responses": tuple(slot["responses"])}) for slot in record["slots"])
        state = RunState(record["step"], slots, record["kl_coefficient"])
        yield Checkpoint(path, state)
