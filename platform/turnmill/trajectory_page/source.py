"""Where trajectories come from: the folder of a run, with what its journal holds in flight, or a trajectory store."""

import hashlib
import os
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from turnmill.core.errors import SettingsError, TurnmillError
from turnmill.jobs.yaml_file import parse_yaml
from turnmill.observability import json_lines
from turnmill.observability.progress import read_progress
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TurnRecord, decode_turn
from turnmill.trajectories.address import JournalAddress
from turnmill.trajectory_page.detail import Worth, read_worth
from turnmill.trajectory_page.files import LogReader, Reading
from turnmill.trajectory_page.index import Index, open_index
from turnmill.trajectory_page.store import StoreReader
from turnmill.trajectory_page.summary import IN_FLIGHT, VALIDATION, Summary
from turnmill.trajectory_page.tokens import Vocabulary

STILL_SECONDS = 120.0
"""A run that has not progressed for longer is called still."""


@dataclass(frozen=True, slots=True)
class State:
    """How the run is."""

    name: str
    """`going on`, `done`, `failed` or `still`."""

    text: str


class Source(Protocol):
    """What a page is made of."""

    @property
    def index(self) -> Index:
        """What lists are made of."""
        ...

    @property
    def title(self) -> str:
        """What the page is called."""
        ...

    @property
    def vocabulary(self) -> Vocabulary:
        """What each token says."""
        ...

    def update(self) -> Generator[Reading, None, None]:
        """Bring the index up to date, part by part. Raises StoreUnavailableError."""
        ...

    def state(self) -> State:
        """How the run is."""
        ...

    def turns(self, summary: Summary) -> list[TurnRecord]:
        """A trajectory's turns; empty where they are gone."""
        ...

    def worth(self, summary: Summary, turns: list[TurnRecord]) -> Worth:
        """What is kept of its advantages."""
        ...

    def frames(self, summary: Summary) -> Path | None:
        """A moving picture of it."""
        ...

    def picture(self, name: str) -> Path | None:
        """A picture that an observation held."""
        ...

    def close(self) -> None:
        """Let go of files."""
        ...


class RunSource:
    """The folder of a run."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.title = path.resolve().name
        place = _index_place(self.folder)
        self.index = open_index(place)
        environment, lock = _environment(self.folder), place.with_suffix(".lock")
        self._log = LogReader(self.folder.trajectories, self.index, run=self.title, environment=environment, lock=lock)
        self._store: StoreReader | None = None
        self._address: JournalAddress | None = None
        self._vocabulary: Vocabulary | None = None

    @property
    def vocabulary(self) -> Vocabulary:
        """What each token says; a run writes it when its model is there."""
        if not self._vocabulary:
            self._vocabulary = Vocabulary.read(self.folder.vocabulary)
        return self._vocabulary

    def update(self) -> Generator[Reading, None, None]:
        """Read on in the log, and look what is in flight."""
        yield from self._log.update()
        self._look_into_the_journal()

    def _look_into_the_journal(self) -> None:
        address = JournalAddress.read(self.folder.path)
        if address is None:
            return
        if self.state().name != "going on":
            # The store of a run that has ended is gone with it.
            if self.index.rows("SELECT 1 FROM episodes WHERE kind = ? LIMIT 1", (IN_FLIGHT,)):
                self.index.replace_in_flight([])
            return
        if self._store is None or address != self._address:
            # Every attempt on a machine of one's own has a store of its own.
            self._store = StoreReader(address.url, run=address.run, finished_too=False)
            self._address = address
        self._store.update(self.index)

    def state(self) -> State:
        """As the folder tells it."""
        if failure := self.folder.read_failure():
            return State("failed", f"failed: {failure}")
        progress, still = read_progress(self.folder), self.folder.seconds_since_progress()
        where = f"{progress.phase} {progress.done}/{progress.total}" if progress else "starting"
        if self._has_ended() and progress and progress.phase == "training" and progress.done >= progress.total:
            return State("done", f"done, {where}")
        if self.folder.last_beat() is None or still > STILL_SECONDS:
            return State("still", f"{where}, no progress for {still / 60:.0f} min")
        return State("going on", where)

    def _has_ended(self) -> bool:
        """Whether the last attempt has."""
        return [mark["event"] for mark in self.folder.read_marks()][-1:] == ["ended"]

    def turns(self, summary: Summary) -> list[TurnRecord]:
        """From the log, or from the store where it is in flight."""
        if summary.kind == IN_FLIGHT:
            return (self._store.read(summary.run, summary.name) if self._store else None) or []
        records = []
        for place in self.index.places(summary.id):
            try:
                with (self.folder.trajectories / place.file).open("rb") as file:
                    file.seek(place.start)
                    record = json_lines.decode(file.read(place.length), "episode")
            except FileNotFoundError:
                continue
            turn = decode_turn(record or {})
            records += [turn] if turn is not None else []
        return records

    def worth(self, summary: Summary, turns: list[TurnRecord]) -> Worth:
        """From the log."""
        return read_worth(self.folder.trajectories, summary.name, {turn.step for turn in turns})

    def frames(self, summary: Summary) -> Path | None:
        """Of some episodes of a validation."""
        path = self.folder.episodes / f"validation-{summary.last_step:06d}-{summary.number}.gif"
        return path if summary.kind == VALIDATION and summary.outcome != "failed" and path.is_file() else None

    def picture(self, name: str) -> Path | None:
        """One among the episodes of the folder."""
        path = self.folder.episodes / name
        return path if path.parent == self.folder.episodes and path.is_file() else None

    def close(self) -> None:
        """Let another process carry the index on."""
        self._log.close()
        self.index.close()


class StoreSource:
    """Every run in a trajectory store."""

    def __init__(self, url: str) -> None:
        # Without what may be a password.
        self.title = url.partition("://")[2].rpartition("@")[2].partition("?")[0]
        self.index = Index()
        self.vocabulary = Vocabulary()
        self._store = StoreReader(url, finished_too=True)

    def update(self) -> Generator[Reading, None, None]:
        """Look what is there."""
        self._store.update(self.index)
        yield Reading(1, 1)

    def state(self) -> State:
        """A store has no end."""
        return State("going on", "trajectory store")

    def turns(self, summary: Summary) -> list[TurnRecord]:
        """As the store has them."""
        return self._store.read(summary.run, summary.name) or []

    def worth(self, summary: Summary, turns: list[TurnRecord]) -> Worth:
        """The store keeps none."""
        return None

    def frames(self, summary: Summary) -> Path | None:
        """The store keeps none."""
        return None

    def picture(self, name: str) -> Path | None:
        """The store keeps none."""
        return None

    def close(self) -> None:
        """Let go of the index."""
        self.index.close()


def open_source(place: str) -> RunSource | StoreSource:
    """The run in a folder, or the store at a URL. Raises SettingsError."""
    if place.partition("://")[0] in ("redis", "rediss", "unix"):
        source = StoreSource(place)
        try:
            for _ in source.update():
                pass
        except TurnmillError as error:
            raise SettingsError(
                f"{source.title}: {error} Is the run still there? Its folder holds what has ended."
            ) from error
        return source
    if "://" in place:
        raise SettingsError(f"{place}: neither a run's folder nor a store. Write a path, or redis://HOST:PORT/0.")
    return RunSource(Path(place))


def _index_place(folder: RunFolder) -> Path:
    """On this machine, whatever disk the run is on; the same for the same folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnmill" / "trajectories"
    path = str(folder.path.resolve())
    place = cache / f"{folder.path.resolve().name}-{hashlib.blake2b(path.encode(), digest_size=6).hexdigest()}.sqlite"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if not os.access(cache, os.W_OK):
            raise PermissionError(f"{cache} may not be written to")
    except OSError as error:
        raise SettingsError(f"The index of the trajectories has no place: {error}. Set XDG_CACHE_HOME.") from error
    return place


def _environment(folder: RunFolder) -> str:
    """What the job says of it, for turns that do not."""
    try:
        job = parse_yaml(folder.job.read_text(encoding="utf-8")).value
        environment = job["spec"]["environment"] if isinstance(job, dict) else {}
        return " ".join(str(environment[part]) for part in ("name", "task") if environment.get(part))
    except (OSError, KeyError, TypeError, AttributeError, TurnmillError):
        return ""
