"""Steps back of the time of day, for which timers of other programs stand still."""

import time


class Clock:
    """Knows whether the time of day was set back since the first look, and has not caught up.

    Ray's timers wait until a time of day: after such a step they stand still until it has come, and Ray offers to
    nobody what a process that has ended gave back. A step forward and one back between two looks go unnoticed.
    """

    def __init__(self) -> None:
        self._ahead = time.time() - time.monotonic()
        """Seconds of the time of day beyond the clock that is never set, at the last look."""

        self._latest = time.time()
        """The latest time of day that there was, or that there would have been without a step back."""

    def seconds_behind(self) -> float:
        """Return the seconds until the time of day is what it would have been, or 0: to be called often."""
        steady, now = time.monotonic(), time.time()
        self._latest = max(self._latest, steady + self._ahead)
        self._ahead = now - steady
        return max(0.0, self._latest - now)
