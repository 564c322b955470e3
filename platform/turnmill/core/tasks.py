"""Tasks of asyncio."""

import asyncio


def is_cancelled() -> bool:
    """Whether it is this task that is to end; else a CancelledError comes from what it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
