"""Agents that repeat themselves: the time of a tool must not grow with the square of an action's length."""

import pytest

from turnmill.testing.tool_calls import make_tool
from turnmill.tools import registry
from turnmill.tools.bash_terminal import find_forbidden
from turnmill.tools.browser.commands import parse_command

# With time that grows with the square of its length, a text like this takes several minutes.
pytestmark = pytest.mark.timeout(120)

LENGTH = 500_000
NEEDED = {"MCP_GATEWAY_ADDRESS": "http://gateway:1", "SERPER_API_KEY": "secret"}
BEGINNINGS = [
    "rm ", "rm -rf", "find / ", "eval ", "<search>", "search:", "```search\n", "```sql\n", "```sql\n\n", "```input\n",
    "<python>", "```python", "```", "<tool_call>", "<bash>", "type [1] [", "<think></think>```", "[", "{", " ",
]  # fmt: skip


@pytest.mark.parametrize("beginning", BEGINNINGS)
@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_an_action_that_begins_again_and_again_is_parsed(name, beginning):
    tool = make_tool(name, **NEEDED)

    for around in ("", "```", "<think></think>```"):
        tool.parse(f"{around}{beginning * (LENGTH // len(beginning))}{around}")


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_commands_that_begin_again_and_again_are_parsed(beginning):
    repeated = beginning * (LENGTH // len(beginning))

    assert find_forbidden(repeated) == []
    assert parse_command(repeated) is None
