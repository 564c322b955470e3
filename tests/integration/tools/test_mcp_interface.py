"""The tool mcp_interface with two servers of the Model Context Protocol behind one address."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from starlette.applications import Starlette
from starlette.routing import Mount

from turnmill.core.errors import ToolFailedError
from turnmill.testing.tool_calls import Dialogue, make_tool
from turnmill.tools.base import ToolCall

pytestmark = pytest.mark.asyncio(loop_scope="module")


def calculator() -> MCPServer:
    server = MCPServer("calculator")

    @server.tool()
    def add(a: int, b: int) -> str:
        """Adds two numbers."""
        return f"{a} + {b} = {a + b}"

    @server.tool()
    def divide(a: int, b: int) -> str:
        """Divides two numbers."""
        return str(a / b)

    @server.tool()
    def flood() -> str:
        """Writes a lot."""
        return "x" * 30_000

    @server.resource("notes://one")
    def note() -> str:
        """A note."""
        return "text"

    return server


def weather() -> MCPServer:
    server = MCPServer("weather")

    @server.tool()
    def forecast(city: str) -> str:
        """Returns the weather."""
        return f"{city}: fine"

    @server.tool()
    def meta(context: Context) -> str:
        """Returns what came with the request."""
        return json.dumps(context.request_context.meta)

    @server.tool()
    def add(place: str) -> str:
        """Adds a place."""
        return place

    return server


@asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[str]:
    servers = {"calculator": calculator(), "weather": weather()}
    app = Starlette(routes=[Mount(f"/{name}", app=server.sse_app()) for name, server in servers.items()])
    async with serving(app) as address:
        yield address


@pytest.fixture
def dialogue(gateway: str) -> Dialogue:
    return Dialogue(make_tool("mcp_interface", MCP_GATEWAY_ADDRESS=gateway), {"mcp_servers": ["calculator"]})


def call(name: str, server: str | None = None, **arguments: object) -> str:
    wanted = {"name": name, "arguments": arguments, **({"server": server} if server else {})}
    return f"<tool_call>{json.dumps(wanted)}</tool_call>"


def wrapped(text: str) -> str:
    return f"\n<mcp_response>\n```result\n{text}\n```\n</mcp_response>\n"


@pytest.mark.feature("verl-tool", "MCP tools")
async def test_a_tool_is_called_and_its_text_is_the_observation(dialogue: Dialogue):
    assert await dialogue.say(call("add", "calculator", a=1, b=2)) == wrapped("1 + 2 = 3")
    assert (dialogue.result.done, dialogue.result.valid) == (False, True)


async def test_a_server_gets_the_key_of_a_call_to_know_a_repeat_by(dialogue: Dialogue):
    action = call("meta")
    parsed = dialogue.tool.parse(action)

    result = await dialogue.tool.call(ToolCall("t", action, parsed, {"mcp_servers": ["weather"]}, {}, "a key"))

    assert result.observation == wrapped(json.dumps({"turnmill.dev/idempotency-key": "a key"}))


async def test_a_call_need_not_name_the_only_allowed_server(dialogue: Dialogue):
    assert await dialogue.say(call("add", a=1, b=2)) == wrapped("1 + 2 = 3")


async def test_a_call_without_a_server_goes_to_the_server_with_the_tool(dialogue: Dialogue):
    dialogue.extra["mcp_servers"] = ["calculator", {"name": "weather"}]

    assert await dialogue.say(call("forecast", city="Bern")) == wrapped("Bern: fine")


async def test_a_call_of_a_tool_of_two_servers_must_name_a_server(dialogue: Dialogue):
    dialogue.extra["mcp_servers"] = ["calculator", "weather"]

    assert await dialogue.say(call("add", place="x")) == wrapped(
        "Tool 'add' is available on multiple servers ['calculator', 'weather']; please specify which one to use."
    )
    assert (dialogue.result.done, dialogue.result.valid) == (True, False)


async def test_a_call_of_a_tool_of_no_server_must_name_a_server(dialogue: Dialogue):
    dialogue.extra["mcp_servers"] = ["calculator", "weather"]

    assert await dialogue.say(call("nothing")) == wrapped(
        "Unable to locate tool 'nothing'. Specify one of the servers: ['calculator', 'weather']"
    )


async def test_the_default_server_takes_calls_without_a_server(gateway: str):
    tool = make_tool("mcp_interface", MCP_GATEWAY_ADDRESS=gateway, MCP_DEFAULT_SERVER="weather")

    assert await Dialogue(tool).say(call("forecast", city="Bern")) == wrapped("Bern: fine")


async def test_an_error_of_an_mcp_tool_is_an_observation(dialogue: Dialogue):
    observation = await dialogue.say(call("divide", a=1, b=0))

    assert observation == wrapped("Error executing tool divide")
    assert (dialogue.result.done, dialogue.result.valid) == (False, True)


async def test_invalid_arguments_are_an_observation(dialogue: Dialogue):
    assert "validation error" in (await dialogue.say(call("add", a="x"))).lower()


async def test_an_unknown_tool_of_a_server_is_an_observation(dialogue: Dialogue):
    assert "nothing" in await dialogue.say(call("nothing"))
    assert dialogue.result.valid


async def test_helper_calls_list_the_tools_and_resources_of_a_server(dialogue: Dialogue):
    tools = await dialogue.say(call("mcp.list_tools"))
    resources = await dialogue.say(call("mcp.list_resources"))

    assert tools.startswith("\n<mcp_response>\n```result\nAvailable tools:\n- add: Adds two numbers.\n- divide: ")
    assert resources == wrapped("Available resources:\n- notes://one: A note.")


async def test_unknown_names_are_not_taken_once_the_tools_of_a_server_are_known(dialogue: Dialogue):
    await dialogue.say(call("add", a=1, b=2))

    assert dialogue.tool.parse(call("python", "calculator", code="1")) is None
    assert dialogue.tool.parse(call("divide", a=1, b=1)) is not None
    assert dialogue.tool.usage().endswith("discovered from server (3 tools). Examples: add, divide, flood")


async def test_a_call_without_a_server_is_not_limited_to_tools_of_servers_of_other_tasks(dialogue: Dialogue):
    await dialogue.say(call("add", a=1, b=2))
    dialogue.extra["mcp_servers"] = ["weather"]

    assert await dialogue.say(call("forecast", city="Bern")) == wrapped("Bern: fine")


async def test_a_long_text_is_cut(dialogue: Dialogue):
    assert await dialogue.say(call("flood")) == wrapped("x" * 20_000 + "\n... (truncated)")


async def test_a_gateway_that_is_down_fails_the_call():
    tool = make_tool("mcp_interface", MCP_GATEWAY_ADDRESS="http://127.0.0.1:1")

    with pytest.raises(ToolFailedError, match=r"http://127\.0\.0\.1:1/calculator/sse failed"):
        await Dialogue(tool).say(call("add", "calculator", a=1, b=2))


async def test_a_nonexistent_server_that_the_agent_names_is_an_observation(dialogue: Dialogue):
    dialogue.extra.clear()

    assert await dialogue.say(call("add", "nowhere")) == wrapped("There is no server 'nowhere'.")
    assert (dialogue.result.done, dialogue.result.valid) == (False, False)


async def test_a_nonexistent_server_that_the_task_names_fails_the_call(dialogue: Dialogue):
    dialogue.extra["mcp_servers"] = ["nowhere"]

    with pytest.raises(ToolFailedError, match="/nowhere/sse failed"):
        await dialogue.say(call("add", "nowhere"))


async def test_a_server_that_has_answered_before_and_disappears_fails_the_call(dialogue: Dialogue, monkeypatch):
    dialogue.extra.clear()
    await dialogue.say(call("add", "calculator", a=1, b=2))
    gateway = dialogue.tool._gateway
    gone = gateway.url("nowhere")
    monkeypatch.setattr(gateway, "url", lambda server: gone)

    with pytest.raises(ToolFailedError, match="/nowhere/sse failed"):
        await dialogue.say(call("add", "calculator", a=1, b=2))


async def test_a_gateway_that_is_down_can_be_an_observation():
    tool = make_tool("mcp_interface", MCP_GATEWAY_ADDRESS="http://127.0.0.1:1", MCP_ON_FAILURE="text")
    dialogue = Dialogue(tool)

    observation = await dialogue.say(call("add", "calculator"))

    assert json.loads(observation.split("```")[1].removeprefix("result"))["tool"] == "add"
    assert dialogue.result.valid


async def test_servers_with_streamable_http_are_called():
    app = calculator().streamable_http_app(streamable_http_path="/calculator/mcp")
    async with serving(app) as address:
        tool = make_tool("mcp_interface", MCP_GATEWAY_ADDRESS=address, MCP_TRANSPORT="http")

        assert await Dialogue(tool).say(call("add", "calculator", a=1, b=2)) == wrapped("1 + 2 = 3")
