"""Synchronous tools, as verl-tool has them, in a server's threads."""

from pathlib import Path

import pytest

from support.server_process import NewServer, ServerProcess, eventually

MEETING = """
import threading
from pathlib import Path

from .base import BaseTool, register_tool

BARRIERS = {number: threading.Barrier(number) for number in (2, 32)}

@register_tool
class Meeting(BaseTool):
    tool_type = "meeting"
    def conduct_action(self, trajectory_id, action, extra_field):
        if action == "hang":
            Path(extra_field["file"]).touch()
            threading.Event().wait()
        BARRIERS[int(action)].wait(60)
        return f"met {action}", False, True
"""

FUNCTIONS = """
import threading

from verl.tools.function_tool import function_tool

BARRIER = threading.Barrier(32)

@function_tool
def meet() -> str:
    \"\"\"Wait for the others.\"\"\"
    BARRIER.wait(60)
    return "met"
"""


@pytest.fixture
def serve(new_server: NewServer, tmp_path: Path):
    def start(*arguments: str, tools: str = "meeting") -> ServerProcess:
        (tmp_path / "own").mkdir()
        (tmp_path / "own" / "meeting.py").write_text(MEETING)
        (tmp_path / "functions.py").write_text(FUNCTIONS)
        settings = ("--set", f"TOOLS_FOLDER={tmp_path / 'own'}")
        settings += ("--set", f"VERL_FUNCTION_TOOL_PATH={tmp_path / 'functions.py'}")
        return new_server("--tool_type", tools, *arguments, *settings)

    return start


@pytest.mark.feature("verl-tool", "threads of synchronous tools")
def test_thirty_two_calls_of_a_synchronous_tool_run_at_once(serve):
    server = serve()

    body = server.post([f"t{n}" for n in range(32)], ["32"] * 32).json()

    # No call returns before all of them are running.
    assert body["observations"] == ["met 32"] * 32


def test_thirty_two_synchronous_functions_of_verl_run_at_once(serve):
    server = serve(tools="verl")

    body = server.post([f"t{n}" for n in range(32)], ['<tool_call>{"name": "meet"}</tool_call>'] * 32).json()

    assert {answer["obs"] for answer in body["observations"]} == {"\n<tool_response>\nmet\n</tool_response>\n"}


@pytest.mark.feature("verl-tool", "threads of synchronous tools")
def test_no_more_calls_run_at_once_than_the_server_has_threads(serve):
    server = serve("--thread_pool_size", "1", "--request_timeout", "1")

    assert server.post(["a", "b"], ["2"] * 2).status_code == 500
    assert server.http.get("/health").json()["thread_pool_size"] == 1


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_synchronous_call_that_never_returns_does_not_keep_a_stopped_server(serve, tmp_path: Path, workers: str):
    server = serve("--grace-seconds", "0.1", "--uvi_workers", workers)
    begun = tmp_path / "begun"
    server.http.timeout = 0.2
    with pytest.raises(Exception, match="timed out"):
        server.observe("hang", file=str(begun))
    eventually(begun.exists)

    assert server.stop() == 0
    assert "Calls of synchronous tools were abandoned" in server.log
