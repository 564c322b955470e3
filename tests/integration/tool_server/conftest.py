"""Tool servers that are started from the command line, and their stores."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.contained_tests import bring_loopback_up, contain, run_contained
from support.server_process import NewServer, ServerProcess
from turnmill.trajectories.embedded import EmbeddedStore

TOOLS = '''
import asyncio
import os
from pathlib import Path
from typing import ClassVar

from turnmill.core.errors import ToolFailedError
from turnmill.tools.base import Tool, ToolCall, ToolResult
from turnmill.tools.registry import register
from turnmill.trajectories.base import Change


@register
class Trial(Tool):
    """`meet N` waits for N concurrent calls, `hold` for its file; both count their calls."""

    name: ClassVar[str] = "trial"
    stateful: ClassVar[bool] = True
    num_concurrent = 0

    def usage(self):
        return "meet N, hold, count, fail, break"

    def parse(self, action):
        return action if action.split(" ")[0] in ("meet", "hold", "count", "fail", "break") else None

    async def call(self, call):
        word, _, rest = call.parsed.partition(" ")
        folder = Path(self.context.settings["TRIAL_FOLDER"])
        if word == "meet":
            Trial.num_concurrent += 1
            while Trial.num_concurrent < int(rest):
                await asyncio.sleep(0.01)
        if word == "hold":
            (folder / f"held-{os.getpid()}").touch()
            while not (folder / "go").exists():
                await asyncio.sleep(0.01)
        if word == "fail" and not (folder / "go").exists():
            raise ToolFailedError("What is behind the tool is down.")
        if word == "break":
            raise KeyError("broken")
        number = int(call.state.get("number", b"0")) + 1
        return ToolResult(f"{word} {number}", change=Change(written={"number": str(number).encode()}))
'''


@pytest.fixture
def trial_folder(tmp_path: Path) -> Path:
    """The folder in which the tool `trial` looks for `go` and creates `held-PID`."""
    folder = tmp_path / "trial"
    folder.mkdir()
    return folder


@pytest.fixture
def new_server(tmp_path: Path, trial_folder: Path) -> Iterator[NewServer]:
    """Start servers with a tool `trial`, and stop them after the test."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "trial.py").write_text(TOOLS)
    servers: list[ServerProcess] = []

    def new(*arguments: str, ready: bool = True, **options: Any) -> ServerProcess:
        settings = ("--set", f"TOOLS_FOLDER={tools}", "--set", f"TRIAL_FOLDER={trial_folder}")
        few = () if "--max_concurrent_requests" in arguments else ("--max_concurrent_requests", "256")
        servers.append(ServerProcess(tmp_path / f"server-{len(servers)}.log", *settings, *few, *arguments, **options))
        return servers[-1].wait_until_ready() if ready else servers[-1]

    yield new
    for server in servers:
        server.close()


@pytest.fixture
def redis_url() -> Iterator[str]:
    """A store that servers share and that outlives them."""
    with EmbeddedStore() as store:
        yield store.url


@pytest.fixture(scope="session")
def contained() -> None:
    """Run the test, which kills or pauses processes, in its own namespaces."""
    bring_loopback_up()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    contain(items, "contained")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_contained(pyfuncitem)
