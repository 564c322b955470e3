import pytest

from turnmill.testing.tool_calls import Dialogue, make_tool
from turnmill.tools.mcp_interface import McpCall, parse_call

GATEWAY = {"MCP_GATEWAY_ADDRESS": "http://127.0.0.1:1/"}


@pytest.mark.parametrize(
    ("action", "call"),
    [
        ('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', McpCall("add", {"a": 1}, None)),
        (
            '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}", "server": "s"}</tool_call>',
            McpCall("add", {"a": 1}, "s"),
        ),
        ('<tool_call>{"name": "add", "arguments": "text", "server_name": 3}</tool_call>', McpCall("add", "text", "3")),
        ('<tool_call>{"name": "add"}</tool_call>', McpCall("add", {}, None)),
        ('{"action": {"server": "s", "tool": "add", "arguments": {"a": 1}}}', McpCall("add", {"a": 1}, "s")),
        ('{"tool": "add", "arguments": {}}', McpCall("add", {}, None)),
        ('{"tool": "add"}', None),
        ('{"name": "add", "arguments": {}}', None),
        ("<tool_call>{}</tool_call>", None),
        ("<tool_call>no json</tool_call>", None),
        ("<tool_call>[1]</tool_call>", None),
        ("<mcp_call>{}</mcp_call>", None),
        ("[" * 100_000, None),
        ("text", None),
    ],
)
def test_tool_calls_and_react_actions_are_parsed(action, call):
    assert parse_call(action) == call


@pytest.mark.feature("verl-tool", "MCP tools")
@pytest.mark.parametrize(
    "extra",
    [{"mcp_servers": ["weather", {"name": "maps"}]}, {"mcp_servers": [{"name": "maps"}, "weather"], "other": 1}],
)
async def test_a_server_that_is_not_allowed_ends_the_trajectory(extra):
    dialogue = Dialogue(make_tool("mcp_interface", **GATEWAY), extra)

    observation = await dialogue.say('<tool_call>{"name": "add", "server": "bank"}</tool_call>')

    assert "Server 'bank' not allowed for this task. Allowed: ['maps', 'weather']" in observation
    assert (dialogue.result.done, dialogue.result.valid) == (True, False)


async def test_a_call_without_configured_servers_ends_the_trajectory():
    dialogue = Dialogue(make_tool("mcp_interface", **GATEWAY))

    assert "No MCP servers configured for this task." in await dialogue.say('<tool_call>{"name": "add"}</tool_call>')
    assert (dialogue.result.done, dialogue.result.valid) == (True, False)


def test_the_usage_shows_the_call_format_before_the_tools_are_known():
    assert make_tool("mcp_interface", **GATEWAY).usage() == (
        'You can call remote MCP tools using <tool_call>{"name":..., "arguments":{...}}</tool_call>.'
    )
