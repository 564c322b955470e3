"""Parts of verl that turnmill uses unchanged: functions as tools, their results, and formats of tool calls."""

import json
from typing import Any, Literal, Optional, get_args

import pytest
from transformers.utils import DocstringParsingException, TypeHintParsingException, get_json_schema
from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.tools import function_tool as verl_functions
from verl.tools.function_tool import function_tool, get_function_tool, normalize_function_tool_return
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from turnmill.jobs.multi_turn_agent import MultiTurnAgent
from turnmill.rollout.multi_turn.schemas import read_schemas, show_whole_schema


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test an empty registry of functions."""
    monkeypatch.setattr(verl_functions, "FUNCTION_TOOL_REGISTRY", {})


def find(city: str, unit: Literal["c", "f"], days: int | None = None, near: Optional[list[str]] = None) -> str:  # noqa: UP045
    """Find the weather.

    Args:
        city: Where.
        unit: Degrees.
        days: How far ahead.
        near: Other places.
    """
    return city


@pytest.mark.feature("verl's multi-turn", "schemas from signatures")
def test_a_schema_is_made_from_signature_and_docstring():
    function_tool("weather")(find)

    function = get_function_tool("weather").tool_schema.function
    properties = function.parameters.properties
    assert (function.name, function.description) == ("weather", "Find the weather.")
    assert function.parameters.required == ["city", "unit"]
    assert (properties["city"].type, properties["city"].description) == ("string", "Where.")
    assert properties["unit"].enum == ["c", "f"]
    assert [properties[name].type for name in ("days", "near")] == ["integer", "array"]


@pytest.mark.feature("verl's multi-turn", "schemas from signatures")
def test_a_nullable_argument_is_not_required():
    """transformers marks it as nullable; verl's own schema has no such field and only leaves it out of `required`."""
    marked = get_json_schema(find)["function"]["parameters"]["properties"]["days"]
    function_tool("weather")(find)

    shown = get_function_tool("weather").tool_schema.model_dump(exclude_none=True)["function"]["parameters"]
    assert marked["nullable"] is True
    assert "nullable" not in shown["properties"]["days"]
    assert "days" not in shown["required"]


def shown(name: str, of_file: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the schema of a registered function as the tool agent loop shows it to the policy."""
    tool = get_function_tool(name)
    show_whole_schema(tool, of_file or {})
    return tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True)


@pytest.mark.feature("verl's multi-turn", "schemas from signatures")
def test_the_policy_is_shown_nullable_arguments_and_items_of_lists():
    function_tool("weather")(find)

    function = shown("weather")["function"]

    properties = function["parameters"]["properties"]
    assert function["name"] == "weather"
    assert properties["days"] == {"type": "integer", "nullable": True, "description": "How far ahead."}
    assert properties["near"] == {
        "type": "array",
        "items": {"type": "string"},
        "nullable": True,
        "description": "Other places.",
    }
    assert get_function_tool("weather").tool_schema.function.parameters.required == ["city", "unit"]


def test_the_given_schema_of_a_function_is_kept():
    given = {"type": "function", "function": {"name": "find", "description": "Own."}}
    function_tool(schema=given)(find)

    assert shown("find")["function"]["description"] == "Own."


def test_a_schema_of_a_file_is_shown_as_it_was_written(tmp_path):
    properties = {"day": {"type": "array", "items": {"type": "integer", "minimum": 1}}, "unit": {"type": "string"}}
    function = {"name": "weather", "description": "", "parameters": {"type": "object", "properties": properties}}
    schema = {"type": "function", "function": function}
    file = tmp_path / "tools.yaml"
    file.write_text(
        json.dumps({"tools": [{"class_name": "x.Y", "config": {}, "tool_schema": schema}, {"class_name": "Z"}]})
    )
    function_tool("weather", schema=OpenAIFunctionToolSchema.model_validate(schema))(find)

    assert shown("weather", read_schemas(str(file))) == schema
    assert read_schemas(None) == {}


def without_docstring(city: str) -> str:
    return city


def without_hint(city) -> str:
    """Find.

    Args:
        city: Where.
    """
    return city


def without_argument(city: str) -> str:
    """Find."""
    return city


def with_any_number(*cities: str) -> str:
    """Find.

    Args:
        cities: Where.
    """
    return cities[0]


@pytest.mark.feature("verl's multi-turn", "schemas from signatures")
@pytest.mark.parametrize(
    ("function", "error"),
    [
        (without_docstring, DocstringParsingException),
        (without_hint, TypeHintParsingException),
        (without_argument, DocstringParsingException),
        (with_any_number, ValueError),
    ],
)
def test_a_function_without_docstring_or_type_hints_is_refused(function, error):
    with pytest.raises(error):
        function_tool(function)


def test_another_function_of_the_same_name_is_refused():
    function_tool("weather")(find)

    with pytest.raises(ValueError, match="'weather' is already registered"):
        function_tool("weather", schema=SCHEMA)(without_docstring)


@pytest.mark.feature("verl's multi-turn", "return values of functions")
@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ("sun", ("sun", 0.0, {})),
        ({"sky": "klar ☀"}, ('{"sky": "klar ☀"}', 0.0, {})),
        (ToolResponse(text="sun"), ("sun", 0.0, {})),
        (("sun",), ("sun", 0.0, {})),
        (("sun", 0.5), ("sun", 0.5, {})),
        (("sun", None, None), ("sun", 0.0, {})),
        (("sun", 1, {"degrees": 30}), ("sun", 1.0, {"degrees": 30})),
        (7, ("7", 0.0, {})),
    ],
)
def test_results_of_functions_are_normalised(returned, expected):
    response, reward, metrics = normalize_function_tool_return(returned)

    assert (response.text, reward, metrics) == expected


@pytest.mark.feature("verl's multi-turn", "return values of functions")
@pytest.mark.parametrize("returned", [(), ("sun", 1, {}, "more")])
def test_a_tuple_of_the_wrong_length_is_refused(returned):
    with pytest.raises(TypeError):
        normalize_function_tool_return(returned)


class SingleTextTokenizer:
    """A tokenizer that decodes any tokens to one text."""

    pad_token = "<pad>"

    def __init__(self, text: str) -> None:
        self.text = text

    def decode(self, ids: list[int], **_: Any) -> str:
        return self.text

    def convert_tokens_to_ids(self, token: str) -> int:
        return 7


CALLS = {
    "hermes": '<tool_call>{"name": "add", "arguments": {"a": 2, "b": "x"}}</tool_call>',
    "gpt-oss": (
        "<|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>"
        '{"a": 2, "b": "x"}<|call|>'
    ),
    "qwen3_coder": (
        "<tool_call>\n<function=add>\n<parameter=a>\n2\n</parameter>\n<parameter=b>\nx\n</parameter>\n</function>\n"
        "</tool_call>"
    ),
    "glm": (
        "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>2</arg_value>\n<arg_key>b</arg_key>\n"
        "<arg_value>x</arg_value>\n</tool_call>"
    ),
    "seed": (
        "<seed:tool_call><function=add><parameter=a>2</parameter><parameter=b>x</parameter></function></seed:tool_call>"
    ),
    "minimax": (
        '<minimax:tool_call><invoke name="add"><parameter name="a">2</parameter><parameter name="b">x</parameter>'
        "</invoke></minimax:tool_call>"
    ),
    "kimi": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
        '{"a": 2, "b": "x"}<|tool_call_end|><|tool_calls_section_end|>'
    ),
    "deepseek_v4": (
        '<｜DSML｜tool_calls><｜DSML｜invoke name="add">'
        '<｜DSML｜parameter name="a" string="false">2</｜DSML｜parameter>'
        '<｜DSML｜parameter name="b" string="true">x</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>'
    ),
    "gemma4": '<|tool_call>call:add{a:2,b:<|"|>x<|"|>}<tool_call|>',
}

SCHEMA = OpenAIFunctionToolSchema.model_validate(
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
                "required": ["a", "b"],
            },
        },
    }
)


@pytest.mark.feature("verl's multi-turn", "parsers")
@pytest.mark.parametrize("name", get_args(MultiTurnAgent.model_fields["format"].annotation))
async def test_tool_calls_are_parsed_in_the_format_of_the_model(name):
    parser = ToolParser.get_tool_parser(name, SingleTextTokenizer(f"Well. {CALLS[name]}"))

    content, calls = await parser.extract_tool_calls([1], [SCHEMA])

    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("add", {"a": 2, "b": "x"})]
    assert content.strip() == "Well."
