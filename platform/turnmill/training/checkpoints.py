"""Checkpoints, which are marked when they are complete, and read only if they are complete and undamaged."""

import hashlib
import json
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from turnmill.core.errors import RunFailedError, SettingsError
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.rules import FIXED
from turnmill.observability import atomic_files
from turnmill.rollout.verlog.slot import SlotState

MARKER = "complete.json"
DIGESTS = "sha256.json"
DAMAGED = "damaged_"
"""Prefix of the folders of damaged checkpoints."""

_FILES, _RUN = "files", "run"
_HASHING_THREADS = 8

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


def run_of(job: AgentTrainingJob) -> dict[str, object]:
    """Return the values of a job that its checkpoints belong to, by their paths."""
    spec = job.spec.model_dump(mode="json", by_alias=True)
    values: dict[str, object] = {}
    for path in (fixed.path for fixed in FIXED):
        value: Any = spec
        for part in path.split("."):
            value = value.get(part) if value else None
        values[path] = value
    return values


def complete(root: Path, state: RunState, *, keep: int, run: Mapping[str, object] | None = None) -> None:
    """Mark the checkpoint of `state.step` complete, then delete all but the newest `keep` complete ones.

    Its files are flushed to disk first, so that a power cut leaves no marker without them.
    """
    folder = folder_of(root, state.step)
    atomic_files.flush_folder(folder)
    sizes = {name: (folder / name).stat().st_size for name in _files(folder)}
    marker = asdict(state) | {_FILES: sizes} | ({_RUN: dict(run)} if run else {})
    atomic_files.write_text(folder / MARKER, json.dumps(marker), patience=atomic_files.PATIENCE)
    for old in _complete_folders(root)[keep:]:
        try:
            # The marker is deleted first, so that no run resumes from a half-deleted checkpoint.
            (old / MARKER).unlink()
            _delete(old)
        except OSError as error:
            # On NFS, files that somebody reads keep their folder.
            log.warning("Old checkpoint is not deleted", extra={"folder": str(old), "error": str(error)})


def newest_size(root: Path) -> int:
    """Return the bytes of the newest complete checkpoint, by its marker; 0 without one."""
    try:
        return sum(int(size) for folder in _complete_folders(root)[:1] for size in _marker(folder)[_FILES].values())
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return 0


def write_digests(root: Path, step: int) -> None:
    """Write the SHA-256 of every file of a complete checkpoint, with which `set_aside_damaged` compares them.

    It reads all files, so it runs beside training. If the checkpoint is deleted meanwhile, nothing is written.
    """
    folder = folder_of(root, step)
    try:
        digests = _digests(folder, _marker(folder).get(_FILES, {}))
        atomic_files.write_text(folder / DIGESTS, json.dumps(digests), patience=atomic_files.PATIENCE)
    except FileNotFoundError:
        log.info("Checkpoint was deleted before its digests were written", extra={"step": step})
    except (OSError, ValueError) as error:
        log.warning("Digests of a checkpoint are missing", extra={"step": step, "error": str(error)})


def set_aside_damaged(
    root: Path, on_file: Callable[[], None] = lambda: None, *, run: Mapping[str, object] | None = None
) -> None:
    """Rename complete checkpoints that are damaged, or of another run, and newer than the newest that is neither.

    `on_file` is called after each file that was read. Raises RunFailedError, and renames nothing, if there are
    checkpoints but none can be used.
    """
    damages: dict[Path, str] = {}
    for folder in _complete_folders(root):
        if (damage := _find_damage(folder, run or {}, on_file)) is None:
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
        try:
            if os.path.lexists(aside):
                _delete(aside)
            folder.rename(aside)
        except OSError as error:
            raise RunFailedError(
                f"{folder} is damaged ({damage}) and cannot be renamed: {error.strerror}. Move it away, and resume.",
                "checkpoint",
            ) from error
        log.warning("Checkpoint is damaged and set aside", extra={"folder": str(aside), "damage": damage})


def damaged(root: Path) -> list[Path]:
    """Return the folders of damaged checkpoints."""
    return sorted(root.glob(f"{DAMAGED}*"))


def choose(
    root: Path, step: int | None, on_file: Callable[[], None] = lambda: None, *, run: Mapping[str, object] | None = None
) -> Checkpoint:
    """Return the checkpoint of a step, or the newest, that is complete and undamaged. Raises SettingsError for none."""
    folders = _complete_folders(root)
    damages = []
    for folder in folders if step is None else [path for path in folders if int(_step_of(path)) == step]:
        if (damage := _find_damage(folder, run or {}, on_file)) is None:
            return Checkpoint(folder, _state_in(_marker(folder)))
        damages.append(f"{folder}: {damage}")
    which = ("any step" if step is None else f"step {step}") + (f" ({'; '.join(damages)})" if damages else "")
    known = f"Complete ones: {', '.join(map(_step_of, reversed(folders))) or 'none'}."
    raise SettingsError(f"{root} has no usable checkpoint of {which}. {known} Choose another, or resume the run.")


def latest(root: Path) -> Checkpoint | None:
    """Return the newest complete checkpoint, or None."""
    return next(_newest_first(root), None)


def discard_incomplete(root: Path) -> None:
    """Delete checkpoints that a killed run left incomplete. Raises RunFailedError if that is not possible."""
    for path in root.glob("global_step_*"):
        if not _has_marker(path):
            try:
                _delete(path)
            except OSError as error:
                raise RunFailedError(
                    f"{path} is incomplete and cannot be deleted: {error.strerror}. Move it away, and resume.",
                    "checkpoint",
                ) from error


def _newest_first(root: Path) -> Iterator[Checkpoint]:
    """Yield checkpoints whose marker can be read."""
    for path in _complete_folders(root):
        try:
            yield Checkpoint(path, _state_in(_marker(path)))
        except (OSError, ValueError) as error:
            log.warning("Marker of a checkpoint cannot be read", extra={"folder": str(path), "error": str(error)})


def _complete_folders(root: Path) -> list[Path]:
    """Return the folders that have a marker, the newest first."""
    folders = [path for path in root.glob("global_step_*") if _step_of(path).isdecimal() and _has_marker(path)]
    return sorted(folders, key=lambda path: int(_step_of(path)), reverse=True)


def _step_of(folder: Path) -> str:
    return folder.name.rsplit("_", 1)[1]


def _has_marker(folder: Path) -> bool:
    """Return whether there is a marker; one that cannot be looked at is there, as `_find_damage` then tells why."""
    try:
        (folder / MARKER).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _marker(folder: Path) -> dict[str, Any]:
    """Return the marker. Raises OSError, or ValueError if it holds something else than a marker."""
    marker = json.loads((folder / MARKER).read_bytes())
    if not isinstance(marker, dict) or not isinstance(marker.get(_FILES, {}), dict):
        raise ValueError(f"{MARKER} is no marker of a checkpoint")
    return marker


def _state_in(marker: Mapping[str, Any]) -> RunState:
    try:
        slots = tuple(SlotState(**{**slot, "responses": tuple(slot["responses"])}) for slot in marker["slots"])
        return RunState(int(marker["step"]), slots, float(marker["kl_coefficient"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{MARKER} is no marker of a checkpoint: {error!r}") from error


def _find_damage(folder: Path, run: Mapping[str, object], on_file: Callable[[], None]) -> str | None:
    """Return why a complete checkpoint cannot be used, or None.

    Checkpoints of versions that recorded no sizes, or no run, are taken as they are.
    """
    try:
        marker = _marker(folder)
        if (step := _state_in(marker).step) != int(_step_of(folder)):
            return f"it is of step {step}"
        if differing := [path for path, value in marker.get(_RUN, {}).items() if _differ(value, run.get(path, value))]:
            return f"it is of a run with another {' and '.join(differing)}"
        sizes = marker.get(_FILES, {})
        if not sizes and not any(path.name not in (MARKER, DIGESTS) for path in folder.iterdir()):
            return "it has no files"
        for name, size in sizes.items():
            found = (folder / name).stat()
            if not stat.S_ISREG(found.st_mode):
                return f"{name} is no file"
            if found.st_size != size:
                return f"{name} has {found.st_size} bytes instead of {size}"
        if not (folder / DIGESTS).exists():
            return None
        expected = json.loads((folder / DIGESTS).read_bytes())
        if not isinstance(expected, dict) or expected.keys() != sizes.keys():
            return f"{DIGESTS} does not have the files of {MARKER}"
        digests = _digests(folder, expected, on_file)
    except FileNotFoundError as error:
        return f"{Path(error.filename).relative_to(folder)} is missing"
    except ValueError as error:
        return f"{MARKER} or {DIGESTS} is damaged: {error}"
    except OSError as error:
        return f"it cannot be read: {error}"
    changed = [name for name, digest in digests.items() if digest != expected[name]]
    return f"the content of {', '.join(changed)} has changed" if changed else None


def _differ(before: object, after: object) -> bool:
    """Compare what both have: another version may know more settings."""
    if isinstance(before, dict) and isinstance(after, dict):
        return any(_differ(before[name], after[name]) for name in before.keys() & after.keys())
    return before != after


def _delete(path: Path) -> None:
    """Delete a folder with its contents; of a link, the link alone."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path)


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
