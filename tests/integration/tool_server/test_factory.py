from contextlib import AsyncExitStack

from support.tool_server import tool_context
from turnmill.observability.tool_metrics import ToolMetrics
from turnmill.tool_server.factory import open_sandbox, start_tools
from turnmill.tool_server.settings import ServerSettings


async def test_the_workers_share_the_memory_of_the_sandbox():
    metrics = ToolMetrics()
    settings = ServerSettings(sandbox_memory_mib=512, uvi_workers=4)

    async with AsyncExitStack() as stack:
        await open_sandbox(settings, metrics, stack)

    assert metrics.registry.get_sample_value("turnmill_sandbox_memory_bytes") == 128 * 1024**2


async def test_the_tools_after_a_missing_one_are_started():
    settings = ServerSettings(tool_type=("nosuch", "base"), allow_missing_tools=True)

    async with AsyncExitStack() as stack:
        started = [name async for name, _ in start_tools(settings, tool_context(), stack)]

    assert started == ["base"]
