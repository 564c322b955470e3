"""Background updates of the index while pages are served."""

import contextlib
import logging
import threading

from turnmill.core.errors import TurnmillError
from turnmill.trajectory_page.log_reader import ReadProgress
from turnmill.trajectory_page.source import Source

PAUSE_SECONDS = 1.0

log = logging.getLogger(__name__)


class IndexUpdater:
    """A thread that updates a source's index periodically."""

    def __init__(self, source: Source, *, pause_seconds: float = PAUSE_SECONDS) -> None:
        self._source = source
        self._pause_seconds = pause_seconds
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="index-updater", daemon=True)
        self.reading: ReadProgress | None = None
        """Progress of the first update; None once it is done."""

        self.problem = ""
        """Reason why the last update failed; empty if it did not."""

    def start(self) -> None:
        """Start the thread."""
        self.reading = ReadProgress(0, 1)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and close the source."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        self._source.close()

    def _run(self) -> None:
        while not self._end.is_set():
            self._update()
            self.reading = None
            self._end.wait(self._pause_seconds)

    def _update(self) -> None:
        try:
            # Closed at once when the page is stopped: the index keeps what was read.
            with contextlib.closing(self._source.update()) as readings:
                for reading in readings:
                    if self.reading is not None:
                        self.reading = reading
                    if self._end.is_set():
                        return
            self.problem = ""
        except (TurnmillError, OSError) as error:
            self.problem = str(error)
            log.warning("Index update failed", extra={"what": self.problem})
        except Exception as error:
            # The page continues with the index as it is, and shows the problem.
            self.problem = f"{type(error).__name__}: {error}"
            log.exception("Index update failed")
