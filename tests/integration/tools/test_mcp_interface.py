"""The tool against servers of the Model Context Protocol, behind one address."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
import uvicorn
from mcp.server.mcpserver import MCPServer
from starlette.applications import Starlette
from starlette.routing import Mount

from turnmill.core.errors import ToolFailedError
from turnmill.testing.tool_calls import Dialogue, make_tool

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
        """Tells the weather."""
        return f"{city}: fine"

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


def shown(text: str) -> str:
    return f"\n<mcp_response>\n```result\n{text}\n```\n</mcp_response>\n"


@pytest.mark.feature("verl-tool", "MCP tools")
async def test_a_tool_is_called_and_its_text_comes_back(dialogue: Dialogue):
    assert await dialogue.say(call("add", "calculator", a=1, b=2)) == shown("1 + 2 = 3")
    assert (dialogue.result.done, dialogue.result.valid) == (False, True)


async def test_the_only_server_that_is_allowed_need_not_be_named(dialogue: Dialogue):
    assert await dialogue.say(call("add", a=1, b=2)) == shown("1 + 2 = 3")


async def test_among_servers_the_one_with_the_tool_is_found(dialogue: Dialogue):
    dialogue.extra["mcp_servers"] = ["calculator", {"name": "weather"}]

    assert await dialogue.say(call("forecast", city="Bern")) == shown("Bern: fine")


async def test_a_tool_of_two_servers_asks_for_one(dialogue: Dialogue):
    dialogue.extra["mcp_servers"] = ["calculator", "weather"]

    assert await dialogue.say(call("add", place="x")) == shown(
        "Tool 'add' is available on multiple servers ['calculator', 'weather']; please specify which one to use."
    )
    assert (dialogue.result.done, dialogue.result.valid) == (True, False)


async def test_a_tool_of_no_server_asks_for_one(dialogue: Dialogue):
    dialogue.extra["mcp_servers"] = ["calculator", "weather"]

    assert await dialogue.say(call("nothing")) == shown(
        "Unable to locate tool 'nothing'. Specify one of the servers: ['calculator', 'weather']"
    )


async def test_the_default_server_takes_what_names_none(gateway: str):
    tool = make_tool("mcp_interface", MCP_GATEWAY_ADDRESS=gateway, MCP_DEFAULT_SERVER="weather")

    assert await Dialogue(tool).say(call("forecast", city="Bern")) == shown("Bern: fine")


async def test_an_error_of_an_mcp_tool_is_an_observation(dialogue: Dialogue):
    seen = await dialogue.say(call("divide", a=1, b=0))

    assert seen == shown("Error executing tool divide")
    assert (dialogue.result.done, dialogue.result.valid) == (False, True)


async def test_wrong_arguments_are_the_agents_to_read(dialogue: Dialogue):
    assert "validation error" in (await dialogue.say(call("add", a="x"))).lower()


async def test_an_unknown_tool_is_the_agents_to_read(dialogue: Dialogue):
    assert "nothing" in await dialogue.say(call("nothing"))
    assert dialogue.result.valid


async def test_helpers_list_what_a_server_offers(dialogue: Dialogue):
    tools = await dialogue.say(call("mcp.list_tools"))
    resources = await dialogue.say(call("mcp.list_resources"))

    assert tools.startswith("\n<mcp_response>\n```result\nAvailable tools:\n- add: Adds two numbers.\n- divide: ")
    assert resources == shown("Available resources:\n- notes://one: A note.")


async def test_once_a_server_was_asked_other_names_are_not_meant_for_it(dialogue: Dialogue):
    await dialogue.say(call("add", a=1, b=2))

    assert dialogue.tool.parse(call("python", "calculator", code="1")) is None
    assert dialogue.tool.parse(call("divide", a=1, b=1)) is not None
    assert dialogue.tool.usage().endswith("discovered from server (3 tools). Examples: add, divide, flood")


async def test_what_servers_of_other_tasks_have_says_nothing_of_a_call_without_a_server(dialogue: Dialogue):
    await dialogue.say(call("add", a=1, b=2))
    dialogue.extra["mcp_servers"] = ["weather"]

    assert await dialogue.say(call("forecast", city="Bern")) == shown("Bern: fine")


async def test_a_long_text_is_cut(dialogue: Dialogue):
    assert await dialogue.say(call("flood")) == shown("x" * 20_000 + "\n... (truncated)")


async def test_a_gateway_that_is_down_fails_the_call():
    tool = make_tool("mcp_interface", MCP_GATEWAY_ADDRESS="http://127.0.0.1:1")

    with pytest.raises(ToolFailedError, match=r"http://127\.0\.0\.1:1/calculator/sse failed"):
        await Dialogue(tool).say(call("add", "calculator", a=1, b=2))


async def test_a_server_that_an_agent_makes_up_is_the_agents_to_read(dialogue: Dialogue):
    dialogue.extra.clear()

    assert await dialogue.say(call("add", "nowhere")) == shown("There is no server 'nowhere'.")
    assert (dialogue.result.done, dialogue.result.valid) == (False, False)


async def test_a_server_of_the_task_that_the_gateway_does_not_know_is_nobodys_observation(dialogue: Dialogue):
    dialogue.extra["mcp_servers"] = ["nowhere"]

    with pytest.raises(ToolFailedError, match="/nowhere/sse failed"):
        await dialogue.say(call("add", "nowhere"))


async def test_a_server_that_has_answered_before_is_not_made_up(dialogue: Dialogue, monkeypatch):
    dialogue.extra.clear()
    await dialogue.say(call("add", "calculator", a=1, b=2))
    gateway = dialogue.tool._gateway
    gone = gateway.url("nowhere")
    monkeypatch.setattr(gateway, "url", lambda server: gone)

    with pytest.raises(ToolFailedError, match="/nowhere/sse failed"):
        await dialogue.say(call("add", "calculator", a=1, b=2))


async def test_a_gateway_that_is_down_may_be_told_as_text():
    tool = make_tool("mcp_interface", MCP_GATEWAY_ADDRESS="http://127.0.0.1:1", MCP_ON_FAILURE="text")
    dialogue = Dialogue(tool)

    seen = await dialogue.say(call("add", "calculator"))

    assert json.loads(seen.split("```")[1].removeprefix("result"))["tool"] == "add"
    assert dialogue.result.valid


async def test_servers_over_http_streams_are_called_alike():
    app = calculator().streamable_http_app(streamable_http_path="/calculator/mcp")
    async with serving(app) as address:
        tool = make_tool("mcp_interface", MCP_GATEWAY_ADDRESS=address, MCP_TRANSPORT="http")

        assert await Dialogue(tool).say(call("add", "calculator", a=1, b=2)) == shown("1 + 2 = 3")
