"""Tools of the installed verl, served as they are."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from turnmill.core.errors import ToolUnavailableError
from turnmill.testing.tool_calls import Dialogue, make_tool

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLASSES = '''
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse


class Scales(BaseTool):
    """Remembers how it was made, and forgets it when it is released."""

    made = {}

    async def create(self, instance_id=None, **kwargs):
        name = f"scales-{len(self.made)}"
        self.made[name] = kwargs["create_kwargs"].get("unit", "kg")
        return name, ToolResponse(text="dropped")

    async def execute(self, instance_id, parameters, **kwargs):
        if parameters["weight"] < 0:
            raise ValueError("too light")
        text = f"{parameters['weight']} {self.made[instance_id]}, {len(self.made)} in use"
        return ToolResponse(text=text), 0.5, {"n": 1}

    async def release(self, instance_id, **kwargs):
        del self.made[instance_id]
'''
CONFIG = """
tools:
  - class_name: turnmill_trial_scales.Scales
    config: {type: native}
    tool_schema:
      type: function
      function:
        name: weigh
        description: Weighs.
        parameters:
          type: object
          properties: {weight: {type: integer, description: How much.}}
          required: [weight]
"""
FUNCTIONS = '''
from verl.tools.function_tool import function_tool


@function_tool
def shout(text: str) -> dict:
    """Shouts.

    Args:
        text: What to shout.
    """
    return {"text": text.upper()}, None, {"loud": True}


@function_tool("later")
async def wait(text: str) -> str:
    """Says it back.

    Args:
        text: What to say.
    """
    return text
'''


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def dialogue(tmp_path_factory) -> AsyncIterator[Dialogue]:
    folder = tmp_path_factory.mktemp("verl")
    (folder / "turnmill_trial_scales.py").write_text(CLASSES)
    (folder / "tools.yaml").write_text(CONFIG)
    (folder / "functions.py").write_text(FUNCTIONS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        config, functions = str(folder / "tools.yaml"), str(folder / "functions.py")
        tool = make_tool("verl", VERL_TOOL_CONFIG_PATH=config, VERL_FUNCTION_TOOL_PATH=functions)
        await tool.start()
        yield Dialogue(tool)
        await tool.close()


def call(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


async def test_a_class_is_created_executed_and_released_around_every_call(dialogue: Dialogue):
    dialogue.extra = {"tools_kwargs": {"weigh": {"create_kwargs": {"unit": "lb"}}}}

    for _ in range(2):
        seen = await dialogue.say(call("weigh", '{"weight": 3}'))

        assert seen == "\n<tool_response>\n3 lb, 1 in use\n</tool_response>\n"
    assert dialogue.result.observation == {"obs": seen, "reward": 0.5, "metrics": {"n": 1}}


async def test_what_a_class_raises_is_its_answer_and_its_instance_is_released(dialogue: Dialogue):
    dialogue.extra = {}

    seen = await dialogue.say(call("weigh", '{"weight": -1}'))

    assert seen == "\n<tool_response>\nError executing tool 'weigh': too light\n</tool_response>\n"
    assert "3 kg, 1 in use" in await dialogue.say(call("weigh", '{"weight": 3}'))


async def test_functions_are_called_with_what_they_return_made_uniform(dialogue: Dialogue):
    assert await dialogue.say(call("shout", '{"text": "hé"}')) == (
        '\n<tool_response>\n{"text": "HÉ"}\n</tool_response>\n'
    )
    assert dialogue.result.observation["metrics"] == {"loud": True}
    assert "\nsaid\n" in await dialogue.say(call("later", '{"text": "said"}'))
    assert "\nsaid\n" in await dialogue.say(call("later", '"{\\"text\\": \\"said\\"}"'))


async def test_wrong_arguments_are_an_answer(dialogue: Dialogue):
    assert "Error executing tool 'shout': " in await dialogue.say(call("shout", '{"loud": 1}'))
    assert "Invalid JSON in arguments for 'shout': " in await dialogue.say(call("shout", '"{"'))


async def test_other_names_are_not_meant_for_it(dialogue: Dialogue):
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
async def test_without_a_file_it_cannot_start(settings, message):
    with pytest.raises(ToolUnavailableError, match=message):
        await make_tool("verl", **settings).start()
