"""Sources of trajectories: a run's folder, with the trajectories in flight from its journal, or a trajectory store."""

import hashlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import Protocol

from turnmill.core.errors import SettingsError, TurnmillError
from turnmill.jobs.yaml_file import parse_yaml
from turnmill.observability import json_lines
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TurnRecord, decode_turn
from turnmill.trajectories.address import JournalAddress
from turnmill.trajectories.connections import FORMS, SCHEMES
from turnmill.trajectory_page.index import Index, open_index
from turnmill.trajectory_page.log_reader import LogReader, ReadProgress
from turnmill.trajectory_page.run_state import RunState, read_state
from turnmill.trajectory_page.store_reader import StoreReader
from turnmill.trajectory_page.summary import IN_FLIGHT, VALIDATION, Summary
from turnmill.trajectory_page.tokens import Vocabulary
from turnmill.trajectory_page.turn_view import Advantages, read_advantages


class Source(Protocol):
    """Data of the page."""

    @property
    def index(self) -> Index:
        """Index of the trajectories."""
        ...

    @property
    def title(self) -> str:
        """Title of the page."""
        ...

    @property
    def vocabulary(self) -> Vocabulary:
        """Text of each token."""
        ...

    def update(self) -> Generator[ReadProgress, None, None]:
        """Update the index, chunk by chunk. Raises StoreUnavailableError."""
        ...

    def state(self) -> RunState:
        """Return the state of the run."""
        ...

    def turns(self, summary: Summary) -> list[TurnRecord]:
        """Return a trajectory's turns; empty if they no longer exist."""
        ...

    def advantages(self, summary: Summary, turns: list[TurnRecord]) -> Advantages:
        """Return the logged advantages of a trajectory."""
        ...

    def animation(self, summary: Summary) -> Path | None:
        """Return the path of a GIF of a trajectory; None if there is none."""
        ...

    def image(self, name: str) -> Path | None:
        """Return the path of an image of an observation; None if there is none."""
        ...

    def close(self) -> None:
        """Close all files."""
        ...


class RunSource:
    """Trajectories in a run folder."""

    def __init__(self, path: Path, *, in_flight: bool = True) -> None:
        self.folder = RunFolder(path)
        self._in_flight = in_flight
        self.title = path.resolve().name
        place = _index_path(self.folder)
        self.index = open_index(place)
        environment, lock = _environment(self.folder), place.with_suffix(".lock")
        self._log = LogReader(self.folder.trajectories, self.index, run=self.title, environment=environment, lock=lock)
        self._store: StoreReader | None = None
        self._address: JournalAddress | None = None
        self._vocabulary: Vocabulary | None = None

    @property
    def vocabulary(self) -> Vocabulary:
        """Text of each token, which a run writes once its model is loaded."""
        if not self._vocabulary:
            self._vocabulary = Vocabulary.read(self.folder.vocabulary)
        return self._vocabulary

    def update(self) -> Generator[ReadProgress, None, None]:
        """Read new lines of the log, and the trajectories in flight."""
        yield from self._log.update()
        if self._in_flight:
            self._update_in_flight()

    def _update_in_flight(self) -> None:
        address = JournalAddress.read(self.folder.path)
        if address is None:
            return
        if self.state().name != "going on":
            # The embedded store of a run ends with it.
            if self.index.rows("SELECT 1 FROM episodes WHERE kind = ? LIMIT 1", (IN_FLIGHT,)):
                self.index.replace_in_flight([])
            return
        if self._store is None or address != self._address:
            # Every attempt of a local run has its own store.
            self._store = StoreReader(address.url, run=address.run, include_finished=False)
            self._address = address
        self._store.update(self.index)

    def state(self) -> RunState:
        """Return the state of the run from its folder."""
        return read_state(self.folder)

    def turns(self, summary: Summary) -> list[TurnRecord]:
        """Return a trajectory's turns from the log, or from the store if it is in flight."""
        if summary.kind == IN_FLIGHT:
            return (self._store.read(summary.run, summary.name) if self._store else None) or []
        records = []
        for place in self.index.turn_positions(summary.id):
            try:
                with (self.folder.trajectories / place.file).open("rb") as file:
                    file.seek(place.start)
                    record = json_lines.decode(file.read(place.length), "episode")
            except FileNotFoundError:
                continue
            turn = decode_turn(record or {})
            records += [turn] if turn is not None else []
        return records

    def advantages(self, summary: Summary, turns: list[TurnRecord]) -> Advantages:
        """Return a trajectory's advantages from the log."""
        return read_advantages(self.folder.trajectories, summary.name, {turn.step for turn in turns})

    def animation(self, summary: Summary) -> Path | None:
        """Return the GIF of a validation's episode; None if it has none."""
        path = self.folder.episodes / f"validation-{summary.last_step:06d}-{summary.number}.gif"
        return path if summary.kind == VALIDATION and summary.outcome != "failed" and path.is_file() else None

    def image(self, name: str) -> Path | None:
        """Return the path of an image in the folder `episodes/`; None if there is none."""
        path = self.folder.episodes / name
        return path if path.parent == self.folder.episodes and path.is_file() else None

    def close(self) -> None:
        """Release the index, so that another process can update it."""
        self._log.close()
        self.index.close()


class StoreSource:
    """Trajectories of all runs in a trajectory store."""

    def __init__(self, url: str) -> None:
        # Without what may be a password.
        self.title = url.partition("://")[2].rpartition("@")[2].partition("?")[0]
        self.index = Index()
        self.vocabulary = Vocabulary()
        self._store = StoreReader(url, include_finished=True)

    def update(self) -> Generator[ReadProgress, None, None]:
        """Update the index from the store."""
        self._store.update(self.index)
        yield ReadProgress(1, 1)

    def state(self) -> RunState:
        """Return the state `going on`, as a store has no end."""
        return RunState("going on", "trajectory store")

    def turns(self, summary: Summary) -> list[TurnRecord]:
        """Return a trajectory's turns from the store."""
        return self._store.read(summary.run, summary.name) or []

    def advantages(self, summary: Summary, turns: list[TurnRecord]) -> Advantages:
        """Return None, as the store has no advantages."""
        return None

    def animation(self, summary: Summary) -> Path | None:
        """Return None, as the store has no images."""
        return None

    def image(self, name: str) -> Path | None:
        """Return None, as the store has no images."""
        return None

    def close(self) -> None:
        """Close the index."""
        self.index.close()


def open_source(location: str) -> RunSource | StoreSource:
    """Open the run in a folder, or the store at a URL. Raises SettingsError."""
    if location.partition("://")[0] in SCHEMES:
        source = StoreSource(location)
        try:
            for _ in source.update():
                pass
        except TurnmillError as error:
            raise SettingsError(
                f"{source.title}: {error} Is the run still going? Its folder has the trajectories that have ended."
            ) from error
        return source
    if "://" in location:
        raise SettingsError(f"{location}: neither a run's folder nor the URL of a store. Write a path, or {FORMS}.")
    return RunSource(Path(location))


def _index_path(folder: RunFolder) -> Path:
    """Return the path of a folder's index in the cache of this machine, created if needed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnmill" / "trajectories"
    path = str(folder.path.resolve())
    place = cache / f"{folder.path.resolve().name}-{hashlib.blake2b(path.encode(), digest_size=6).hexdigest()}.sqlite"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if not os.access(cache, os.W_OK):
            raise PermissionError(f"{cache} may not be written to")
    except OSError as error:
        raise SettingsError(f"The index of the trajectories cannot be created: {error}. Set XDG_CACHE_HOME.") from error
    return place


def _environment(folder: RunFolder) -> str:
    """Return the environment of the run's job, for turns that name none."""
    try:
        job = parse_yaml(folder.job.read_text(encoding="utf-8")).value
        environment = job["spec"]["environment"] if isinstance(job, dict) else {}
        return " ".join(str(environment[part]) for part in ("name", "task") if environment.get(part))
    except (OSError, KeyError, TypeError, AttributeError, TurnmillError):
        return ""
