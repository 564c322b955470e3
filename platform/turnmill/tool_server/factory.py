"""Creation of a worker: store, sandbox, tools and application."""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from fastapi import FastAPI

from turnmill.core.errors import ToolUnavailableError
from turnmill.observability.tool_metrics import ToolMetrics
from turnmill.sandboxes.admission import default_budget
from turnmill.sandboxes.base import MIB, Sandbox
from turnmill.sandboxes.fork import ForkSandbox, ProcessSandbox
from turnmill.tool_server.app import Worker, build_app
from turnmill.tool_server.calls import CallExecutor
from turnmill.tool_server.completion_loop import CompletionLoop
from turnmill.tool_server.completions import Completions
from turnmill.tool_server.instrumentation import InstrumentedSandbox, InstrumentedStore, refresh_store_health
from turnmill.tool_server.settings import ServerSettings
from turnmill.tool_server.tool_set import FINISH, ToolSet
from turnmill.tool_server.upstream import Upstream
from turnmill.tools import registry
from turnmill.tools.base import Tool, ToolContext
from turnmill.tools.sandboxed import MODULES
from turnmill.tools.settings import with_environment
from turnmill.trajectories.settings import StoreSettings
from turnmill.trajectories.store import TrajectoryStore

log = logging.getLogger(__name__)


@asynccontextmanager
async def open_worker(settings: ServerSettings) -> AsyncIterator[tuple[Worker, FastAPI]]:
    """Open store, sandbox, tools and application; close them in reverse order.

    Raises ToolUnavailableError or SandboxError if one of them does not work on this machine.
    """
    async with AsyncExitStack() as stack:
        metrics = ToolMetrics()
        assert settings.redis is not None, "a server without a store starts one"
        store = TrajectoryStore.from_url(
            settings.redis,
            settings.run_name,
            StoreSettings(
                lease_seconds=settings.lease_seconds,
                expiry_seconds=settings.expiry_seconds,
                finished_seconds=settings.finished_seconds,
            ),
        )
        stack.push_async_callback(store.close)
        sandbox = await open_sandbox(settings, metrics, stack)
        tool_settings = with_environment(settings.tool_settings)
        context = ToolContext(InstrumentedSandbox(sandbox, metrics), tool_settings)
        tools = {name: tool async for name, tool in start_tools(settings, context, stack)}
        tool_set = ToolSet(tuple(tools.values()))
        metrics.show(tool_set.names)
        executor = CallExecutor(
            tool_set,
            InstrumentedStore(store, metrics),
            metrics,
            done_if_invalid=settings.done_if_invalid,
            workers_per_tool=settings.workers_per_tool,
            store_wait_seconds=settings.store_wait_seconds,
        )
        worker = Worker(
            settings,
            executor,
            metrics,
            left_out=[name for name in settings.tool_type if name not in (*tools, FINISH)],
            before_scrape=partial(refresh_store_health, store, metrics.store),
        )
        yield worker, build_app(worker, open_completions(settings, executor, stack))


def open_completions(settings: ServerSettings, executor: CallExecutor, stack: AsyncExitStack) -> Completions | None:
    """Open completions with tool calls; None if no model server is configured."""
    if settings.model_url is None:
        return None
    upstream = Upstream(
        settings.model_url,
        model=settings.model,
        api_key=settings.model_api_key,
        timeout_seconds=settings.model_timeout,
    )
    stack.push_async_callback(upstream.close)
    return Completions(settings, CompletionLoop(settings, executor, upstream), upstream)


async def open_sandbox(settings: ServerSettings, metrics: ToolMetrics, stack: AsyncExitStack) -> Sandbox:
    """Start the sandbox; raises SandboxError with the isolation mechanisms that do not hold."""
    kind = {"fork": ForkSandbox, "process": ProcessSandbox}[settings.sandbox]
    preload = dict.fromkeys(module for name in settings.tool_type for module in MODULES.get(name, ()))
    given = settings.sandbox_memory_mib
    memory_bytes = (given * MIB if given else default_budget()) // settings.num_workers
    sandbox = kind(
        preload=tuple(preload),
        max_running=settings.max_sandboxes,
        memory_bytes=memory_bytes,
        on_waiting=metrics.sandbox_waiting.set,
    )
    metrics.sandbox_limit.set(settings.max_sandboxes)
    metrics.sandbox_memory.set(memory_bytes)
    stack.push_async_callback(sandbox.close)
    await sandbox.start()
    return sandbox


async def start_tools(
    settings: ServerSettings, context: ToolContext, stack: AsyncExitStack
) -> AsyncIterator[tuple[str, Tool]]:
    """Yield started tools with their names in the settings.

    Raises ToolUnavailableError for one that does not work, unless missing tools are allowed.
    """
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
        yield name, tool
