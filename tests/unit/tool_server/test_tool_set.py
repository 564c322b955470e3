from typing import ClassVar

import pytest

from support.tool_server import Count, Echo, tool_context
from turnmill.tool_server.tool_set import ToolSet
from turnmill.tools.base import Tool


class Greedy(Echo):
    """Takes every action."""

    name: ClassVar[str] = "greedy"

    def parse(self, action: str) -> str | None:
        return action


class Mcp(Greedy):
    name: ClassVar[str] = "mcp_interface"


class Broken(Echo):
    name: ClassVar[str] = "broken"

    def parse(self, action: str) -> str | None:
        raise RuntimeError("never parses")


def tools(*classes: type[Tool]) -> ToolSet:
    return ToolSet([tool_class(tool_context()) for tool_class in classes])


def taker(found: ToolSet, action: str) -> str | None:
    match = found.match(action)
    return match[0].name if match else None


@pytest.mark.feature("verl-tool", "the first tool that takes an action runs it")
def test_an_action_goes_to_the_first_tool_that_takes_it():
    assert taker(tools(Greedy, Echo), "echo a") == "greedy"
    assert taker(tools(Echo, Greedy), "echo a") == "echo"


@pytest.mark.feature("verl-tool", "MCP is matched last")
def test_mcp_interface_is_matched_last_but_listed_in_its_place():
    found = tools(Mcp, Echo)

    assert taker(found, "echo a") == "echo"
    assert taker(found, "other") == "mcp_interface"
    assert found.names == ("mcp_interface", "echo", "finish")


def test_a_tool_that_cannot_parse_an_action_does_not_take_it():
    assert taker(tools(Broken, Echo), "echo a") == "echo"


@pytest.mark.feature("verl-tool", "an action that no tool takes")
def test_an_action_that_no_tool_takes_has_no_match():
    assert tools(Echo, Count).match("hello") is None


@pytest.mark.parametrize(("value", "finishes"), [(True, True), (1, True), (False, False), (None, False)])
def test_any_true_value_finishes(value: object, finishes: bool):
    assert tools(Echo).finishes({"finish": value}) is finishes


@pytest.mark.feature("verl-tool", "the finish tool is always there")
def test_a_server_without_tools_finishes_every_trajectory():
    assert tools().finishes({})


@pytest.mark.feature("verl-tool", "usage instructions")
def test_usage_names_the_tools_but_not_base():
    class Base(Echo):
        name: ClassVar[str] = "base"

    assert tools(Base, Echo, Count).usage() == "Available tools:\n• echo: echo TEXT\n• count: count"
    assert tools(Base).usage() == "No tools available for usage instructions."
