"""The actor of an inference engine, which ends with the process that computes."""

import asyncio
import logging
import os
import threading
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

from turnmill.observability.run_folder import RunFolder

CHECK_SECONDS = 0.5
BEAT_SECONDS = 5.0

Output = TypeVar("Output")

log = logging.getLogger(__name__)


class Core(Protocol):
    """vLLM's `AsyncLLM`, reduced to its health."""

    @property
    def errored(self) -> bool:
        """True once its core process has ended, or its responses are no longer read."""


class EngineServer(vLLMHttpServer):
    """verl's server of an engine, which exits when vLLM's core process has died: out of memory, or a broken GPU.

    Otherwise its actor would stay alive and fail every request.
    """

    async def run_server(self, args: Namespace) -> None:
        """Start the engine, and watch it from then on."""
        await super().run_server(args)
        if (folder := RunFolder.of_process()) is not None:
            core = self.engine.engine_core
            core.get_output_async = beating(core.get_output_async, folder)
        threading.Thread(target=exit_after_death, args=(self.engine,), daemon=True, name="engine-core").start()

    async def live(self) -> None:
        """Never return: the call fails when this actor ends."""
        await asyncio.Event().wait()


def beating(get_output: Callable[[], Awaitable[Output]], folder: RunFolder) -> Callable[[], Awaitable[Output]]:
    """Return the function with a heartbeat for every output: a response may take longer than a run may stall."""

    async def get_output_and_beat() -> Output:
        output = await get_output()
        folder.beat(every=BEAT_SECONDS)
        return output

    return get_output_and_beat


def exit_after_death(core: Core) -> None:
    """End this process when the core has died."""
    while not core.errored:
        time.sleep(CHECK_SECONDS)
    log.error("The core process of the engine has died, and its server ends with it")
    # As verl does on the other machines of an engine: an exception would only end this thread.
    os._exit(1)
