"""What a worker is made of: store, sandbox, tools."""

import logging
import os
from collections import ChainMap
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from turnmill.core.errors import SandboxError, ToolUnavailableError
from turnmill.observability.tool_metrics import ToolMetrics
from turnmill.sandboxes.base import Outcome, Sandbox, Task
from turnmill.tool_server.app import Worker
from turnmill.tool_server.calls import Calls
from turnmill.tool_server.measured import MeasuredSandbox, MeasuredStore
from turnmill.tool_server.settings import ServerSettings
from turnmill.tool_server.tool_set import FINISH, ToolSet
from turnmill.tools import registry
from turnmill.tools.base import Tool, ToolContext
from turnmill.trajectories.store import TrajectoryStore

log = logging.getLogger(__name__)


class _Pending:
    async def run(self, task: Task) -> Outcome:
        raise SandboxError("The sandbox is not built yet.")

    async def close(self) -> None:
        pass


async def open_sandbox(settings: ServerSettings) -> Sandbox:
    return _Pending()


@asynccontextmanager
async def open_worker(settings: ServerSettings) -> AsyncIterator[Worker]:
    """Open everything, and close it in the opposite order."""
    async with AsyncExitStack() as stack:
        metrics = ToolMetrics()
        assert settings.redis is not None, "a server without a store starts one"
        store = TrajectoryStore.from_url(settings.redis, settings.run_name)
        stack.push_async_callback(store.close)
        sandbox = await open_sandbox(settings)
        stack.push_async_callback(sandbox.close)
        tool_settings = ChainMap(dict(settings.tool_settings), dict(os.environ))
        context = ToolContext(MeasuredSandbox(sandbox, metrics), tool_settings)
        tools = [tool async for tool in start_tools(settings, context, stack)]
        tool_set = ToolSet(tools)
        metrics.show(tool_set.names)
        calls = Calls(
            tool_set,
            MeasuredStore(store, metrics),
            metrics,
            done_if_invalid=settings.done_if_invalid,
            workers_per_tool=settings.workers_per_tool,
            store_wait_seconds=settings.store_wait_seconds,
        )
        yield Worker(settings, calls, metrics)


async def start_tools(settings: ServerSettings, context: ToolContext, stack: AsyncExitStack) -> AsyncIterator[Tool]:
    """Make the tools ready; one that cannot work is an error, unless missing tools are allowed."""
    for name in settings.tool_type:
        if name == FINISH:
            continue
        try:
            tool = registry.create(name, context)
            stack.push_async_callback(tool.close)
            await tool.start()
        except ToolUnavailableError as error:
            if not settings.allow_missing_tools:
                raise
            log.error("Tool left out", extra={"tool": name, "error": str(error)})
            continue
        yield tool
