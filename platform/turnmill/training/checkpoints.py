"""Checkpoints, which are marked when they are complete, and read only if they are complete and undamaged."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from turnmill.core.errors import RunFailedError
from turnmill.observability import atomic_files
from turnmill.rollout.verlog.slot import SlotState

MARKER = "complete.json"
DIGESTS = "sha256.json"
DAMAGED = "damaged_"
"""Prefix of the folders of damaged checkpoints."""

_FILES, _HASHING_THREADS = "files", 8

log = logging.getLogger(__name__)


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
    """Mark the checkpoint of `state.step` complete, then delete all but the newest `keep` complete ones.

    Its files are flushed to disk first, so that a power cut leaves no marker without them.
    """
    folder = folder_of(root, state.step)
    _sync(folder)
    sizes = {name: (folder / name).stat().st_size for name in _files(folder)}
    atomic_files.write_text(folder / MARKER, json.dumps(asdict(state) | {_FILES: sizes}))
    for old in list(_newest_first(root))[keep:]:
        # The marker is deleted first, so that no run resumes from a half-deleted checkpoint.
        (old.path / MARKER).unlink()
        shutil.rmtree(old.path)


def failed_to_write(root: Path, step: int, error: BaseException) -> RunFailedError:
    """Return the error of a run whose checkpoint could not be written."""
    reason = str(error).strip().rsplit("\n", 1)[-1]
    free = shutil.disk_usage(root).free // 2**20
    return RunFailedError(
        f"The checkpoint of step {step} could not be written to {folder_of(root, step)}, where {free} MiB are free: "
        f"{reason}. Earlier checkpoints are kept: make room for one more, and resume.",
        "checkpoint",
    )


def write_digests(root: Path, step: int) -> None:
    """Write the SHA-256 of every file of a complete checkpoint, with which `set_aside_damaged` compares them.

    It reads all files, so it runs beside training. If the checkpoint is deleted meanwhile, nothing is written.
    """
    folder = folder_of(root, step)
    try:
        digests = _digests(folder, _recorded_sizes(folder))
        atomic_files.write_text(folder / DIGESTS, json.dumps(digests))
    except FileNotFoundError:
        log.info("Checkpoint was deleted before its digests were written", extra={"step": step})
    except OSError as error:
        log.warning("Digests of a checkpoint are missing", extra={"step": step, "error": str(error)})


def set_aside_damaged(root: Path, on_file: Callable[[], None] = lambda: None) -> None:
    """Rename complete checkpoints with damaged files that are newer than the newest undamaged one.

    `on_file` is called after each file that was read. Raises RunFailedError, and renames nothing, if there are
    checkpoints but all are damaged.
    """
    damages: dict[Path, str] = {}
    for folder in _complete_folders(root):
        if (damage := _find_damage(folder, on_file)) is None:
            break
        damages[folder] = damage
    else:
        if damages:
            described = "; ".join(f"{folder}: {damage}" for folder, damage in damages.items())
            raise RunFailedError(
                f"All checkpoints are damaged ({described}). Restore one from a backup, or start a new run.",
                "checkpoint",
            )
    for folder, damage in damages.items():
        aside = folder.with_name(f"{DAMAGED}{folder.name}")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        log.warning("Checkpoint is damaged and set aside", extra={"folder": str(aside), "damage": damage})


def damaged(root: Path) -> list[Path]:
    """Return the folders of damaged checkpoints."""
    return sorted(root.glob(f"{DAMAGED}*"))


def latest(root: Path) -> Checkpoint | None:
    """Return the newest complete checkpoint, or None."""
    return next(_newest_first(root), None)


def discard_incomplete(root: Path) -> None:
    """Delete checkpoints that a killed run left incomplete."""
    for path in root.glob("global_step_*"):
        if not (path / MARKER).exists():
            shutil.rmtree(path)


def _newest_first(root: Path) -> Iterator[Checkpoint]:
    for path in _complete_folders(root):
        record = json.loads((path / MARKER).read_text())
        slots = tuple(SlotState(**{**slot, "responses": tuple(slot["responses"])}) for slot in record["slots"])
        state = RunState(record["step"], slots, record["kl_coefficient"])
        yield Checkpoint(path, state)


def _complete_folders(root: Path) -> list[Path]:
    """Return the folders that have a marker, the newest first."""
    folders = [path for path in root.glob("global_step_*") if (path / MARKER).exists()]
    return sorted(folders, key=lambda path: int(path.name.rsplit("_", 1)[1]), reverse=True)


def _find_damage(folder: Path, on_file: Callable[[], None]) -> str | None:
    """Return what is wrong with the files of a complete checkpoint, or None.

    Checkpoints of versions that recorded no sizes are taken as they are.
    """
    try:
        sizes = _recorded_sizes(folder)
        for name, size in sizes.items():
            if (found := (folder / name).stat().st_size) != size:
                return f"{name} has {found} bytes instead of {size}"
        if not (folder / DIGESTS).exists():
            return None
        expected = json.loads((folder / DIGESTS).read_text())
        digests = _digests(folder, expected, on_file)
    except FileNotFoundError as error:
        return f"{Path(error.filename).relative_to(folder)} is missing"
    except ValueError as error:
        return f"{MARKER} or {DIGESTS} is no JSON: {error}"
    except OSError as error:
        return f"it cannot be read: {error}"
    changed = [name for name, digest in digests.items() if digest != expected[name]]
    return f"the content of {', '.join(changed)} has changed" if changed else None


def _recorded_sizes(folder: Path) -> dict[str, int]:
    sizes: dict[str, int] = json.loads((folder / MARKER).read_text()).get(_FILES, {})
    return sizes


def _digests(folder: Path, names: Iterable[str], on_file: Callable[[], None] = lambda: None) -> dict[str, str]:
    """Return the SHA-256 of each file; several are read at once, as storage is slower for one reader."""

    def digest(name: str) -> str:
        with (folder / name).open("rb") as file:
            value = hashlib.file_digest(file, "sha256").hexdigest()
        on_file()
        return value

    with ThreadPoolExecutor(_HASHING_THREADS) as threads:
        return dict(zip(names, threads.map(digest, names), strict=True))


def _files(folder: Path) -> list[str]:
    """Return the files of a checkpoint, relative to its folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _sync(folder: Path) -> None:
    """Flush all files and folders of a checkpoint to disk, contents before names."""
    for path in sorted((folder, *folder.rglob("*")), key=lambda path: len(path.parts), reverse=True):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
