"""Tool servers as they are started by hand, and what they need."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.contained_tests import bring_loopback_up, can_contain, inside, run_contained
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
    """`meet N` answers when N calls are here at once, `hold` when its file is there; both count their calls."""

    name: ClassVar[str] = "trial"
    stateful: ClassVar[bool] = True
    here = 0

    def usage(self):
        return "meet N, hold, count, fail, break"

    def parse(self, action):
        return action if action.split(" ")[0] in ("meet", "hold", "count", "fail", "break") else None

    async def call(self, call):
        word, _, rest = call.parsed.partition(" ")
        folder = Path(self.context.settings["TRIAL_FOLDER"])
        if word == "meet":
            Trial.here += 1
            while Trial.here < int(rest):
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
    """Where the tool `trial` looks for `go` and leaves `held-PID`."""
    folder = tmp_path / "trial"
    folder.mkdir()
    return folder


@pytest.fixture
def new_server(tmp_path: Path, trial_folder: Path) -> Iterator[NewServer]:
    """Starts servers, with a tool `trial`, and ends them."""
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
    """A store that servers share and outlive."""
    with EmbeddedStore() as store:
        yield store.url


@pytest.fixture(scope="session")
def contained() -> None:
    """The test kills or breaks something: it runs in namespaces of its own."""
    if inside():
        bring_loopback_up()
    elif not can_contain():
        pytest.skip("needs unshare and the right to make namespaces")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if "contained" not in pyfuncitem.fixturenames or inside():
        return None
    run_contained(pyfuncitem)
    return True
