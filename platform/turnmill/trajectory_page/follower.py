"""Keeps the index up to date beside the pages that are asked for."""

import contextlib
import logging
import threading

from turnmill.core.errors import TurnmillError
from turnmill.trajectory_page.files import Reading
from turnmill.trajectory_page.source import Source

PAUSE_SECONDS = 1.0

log = logging.getLogger(__name__)


class Follower:
    """A thread that reads what a run has written since."""

    def __init__(self, source: Source, *, pause_seconds: float = PAUSE_SECONDS) -> None:
        self._source = source
        self._pause_seconds = pause_seconds
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follower", daemon=True)
        self.reading: Reading | None = None
        """How far the first reading is; None once it is done."""

        self.problem = ""
        """Why the page shows what was there before."""

    def start(self) -> None:
        """Begin."""
        self.reading = Reading(0, 1)
        self._thread.start()

    def stop(self) -> None:
        """End, and let go of the source."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        self._source.close()

    def _follow(self) -> None:
        while not self._end.is_set():
            self._update()
            self.reading = None
            self._end.wait(self._pause_seconds)

    def _update(self) -> None:
        try:
            # Closed at once where the page ends: the index keeps what was read.
            with contextlib.closing(self._source.update()) as readings:
                for reading in readings:
                    if self.reading is not None:
                        self.reading = reading
                    if self._end.is_set():
                        return
            self.problem = ""
        except (TurnmillError, OSError) as error:
            self.problem = str(error)
            log.warning("Not up to date", extra={"what": self.problem})
        except Exception as error:
            # The page goes on with what it has, and says so.
            self.problem = f"{type(error).__name__}: {error}"
            log.exception("Not up to date")
