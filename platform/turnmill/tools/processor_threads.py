"""Threads for work that keeps a processor busy and takes memory, such as decoding pictures."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")

_threads = ThreadPoolExecutor(min(32, (os.cpu_count() or 1) + 4), thread_name_prefix="tool_processor")


async def compute(
    function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """Run a function in one of a few threads, however many threads a server has for tools that wait."""
    return await asyncio.get_running_loop().run_in_executor(_threads, partial(function, *args, **kwargs))
