"""Tools written for verl, served unchanged."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from support.verl_tools import FUNCTIONS_FILE, SCALES_FILE, Scales
from turnmill.core.errors import ToolUnavailableError
from turnmill.testing.tool_calls import Dialogue, make_tool

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def dialogue(tmp_path_factory) -> AsyncIterator[Dialogue]:
    folder = tmp_path_factory.mktemp("verl")
    (folder / "tools.yaml").write_text(SCALES_FILE)
    (folder / "functions.py").write_text(FUNCTIONS_FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scales, "calls", [])
        config, functions = str(folder / "tools.yaml"), str(folder / "functions.py")
        tool = make_tool("verl", VERL_TOOL_CONFIG_PATH=config, VERL_FUNCTION_TOOL_PATH=functions)
        await tool.start()
        yield Dialogue(tool)
        await tool.close()


def call(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


async def test_a_class_is_created_executed_and_released_around_every_call(dialogue: Dialogue):
    dialogue.extra = {"tools_kwargs": {"weigh": {"create_kwargs": {"unit": "st"}}}}
    Scales.calls.clear()

    for _ in range(2):
        observation = await dialogue.say(call("weigh", '{"weight": 3}'))

        assert observation == "\n<tool_response>\n3 st\n</tool_response>\n"
    assert Scales.calls == ["create st", "execute {'weight': 3}", "release st"] * 2
    assert dialogue.result.observation == {"obs": observation, "reward": 0.5, "metrics": {"n": 1}}


async def test_an_exception_of_a_class_is_an_observation_and_the_instance_is_released(dialogue: Dialogue):
    dialogue.extra = {}

    observation = await dialogue.say(call("weigh", '{"weight": -1}'))

    assert observation == "\n<tool_response>\nError executing tool 'weigh': too light\n</tool_response>\n"
    assert Scales.calls[-1] == "release lb"
    assert "\n3 lb\n" in await dialogue.say(call("weigh", '{"weight": 3}'))


async def test_functions_are_called_and_their_return_values_normalized(dialogue: Dialogue):
    assert await dialogue.say(call("shout", '{"text": "hé"}')) == (
        '\n<tool_response>\n{"text": "HÉ"}\n</tool_response>\n'
    )
    assert dialogue.result.observation["metrics"] == {"loud": True}
    assert "\nsaid\n" in await dialogue.say(call("later", '{"text": "said"}'))
    assert "\nsaid\n" in await dialogue.say(call("later", '"{\\"text\\": \\"said\\"}"'))


async def test_invalid_arguments_are_an_observation(dialogue: Dialogue):
    assert "Error executing tool 'shout': " in await dialogue.say(call("shout", '{"loud": 1}'))
    assert "Invalid JSON in arguments for 'shout': " in await dialogue.say(call("shout", '"{"'))


async def test_calls_of_unknown_tools_are_not_taken(dialogue: Dialogue):
    assert dialogue.tool.parse(call("unknown", "{}")) is None
    assert dialogue.tool.parse("text") is None
    assert '"name": "weigh"' in dialogue.tool.usage()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "name a file of BaseTool classes with VERL_TOOL_CONFIG_PATH"),
        ({"VERL_TOOL_CONFIG_PATH": "/no/such.yaml"}, r"FileNotFoundError: there is no file /no/such.yaml"),
    ],
)
async def test_the_tool_verl_requires_an_existing_file(settings, message):
    with pytest.raises(ToolUnavailableError, match=message):
        await make_tool("verl", **settings).start()
