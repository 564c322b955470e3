"""Threads that watch over a run."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watching(watch: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Call `watch` in a thread of this name; at the end, set the event that it is given, and wait for its return."""
    over = threading.Event()
    watcher = threading.Thread(target=watch, args=(over,), daemon=True, name=name)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
