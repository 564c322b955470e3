"""Tools in the default sandbox."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest_asyncio

from turnmill.sandboxes.fork import ForkSandbox
from turnmill.testing.tool_calls import Dialogue, NewDialogue, make_tool
from turnmill.tools.sandboxed import PRELOAD


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def sandbox() -> AsyncIterator[ForkSandbox]:
    sandbox = ForkSandbox(preload=PRELOAD)
    await sandbox.start()
    yield sandbox
    await sandbox.close()


@pytest_asyncio.fixture(loop_scope="session")
async def new_dialogue(sandbox: ForkSandbox) -> NewDialogue:
    def begin(name: str, extra: Mapping[str, Any] | None = None, **settings: str) -> Dialogue:
        return Dialogue(make_tool(name, sandbox, **settings), extra)

    return begin
