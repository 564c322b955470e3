"""Threads in which synchronous tools run."""

import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

log = logging.getLogger(__name__)

_NAME = "tool"

END_SECONDS = 0.5
"""Time for threads to end when the server has stopped."""


class ToolThreads(ThreadPoolExecutor):
    """Threads of a worker. Closing it does not wait for calls that are still running: a thread cannot be stopped."""

    def __init__(self, num_threads: int) -> None:
        super().__init__(num_threads, thread_name_prefix=_NAME)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls, and drop those that have not begun."""
        super().shutdown(wait=False, cancel_futures=True)


def exit_despite_threads() -> None:
    """End the process if a tool's thread still runs, for which the interpreter would wait, perhaps for ever."""
    running = [thread for thread in threading.enumerate() if thread.name.startswith(f"{_NAME}_")]
    deadline = time.monotonic() + END_SECONDS
    for thread in running:
        thread.join(max(0.0, deadline - time.monotonic()))
    num_running = sum(thread.is_alive() for thread in running)
    if num_running:
        log.warning("Calls of synchronous tools were abandoned", extra={"calls": num_running})
        logging.shutdown()
        os._exit(0)
