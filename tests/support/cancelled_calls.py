"""Cancels an agent loop while one of its tool calls is in progress."""

import asyncio
from typing import Any

import pytest

from turnmill.testing.agent_loops import ToolLoopHarness


async def cancel_during_call(harness: ToolLoopHarness) -> None:
    """Play a trajectory whose first call is never answered, cancel it then, and close the loop."""
    called = asyncio.Event()

    async def never_answer(call: Any) -> None:
        called.set()
        await asyncio.Event().wait()

    assert harness.loop.tools is not None
    harness.loop.tools.call = never_answer
    playing = asyncio.create_task(harness.play())
    await called.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    await harness.loop.close()
