"""Schemas of tools as they were written: verl's own classes drop `nullable`, `items`, `default` and others."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import yaml
from transformers.utils import get_json_schema
from verl.tools.schemas import OpenAIFunctionToolSchema

from turnmill.rollout.multi_turn.verl_classes import BaseTool, FunctionTool

Schema = dict[str, Any]


class WholeSchema(OpenAIFunctionToolSchema):  # type: ignore[misc]
    """A schema that is shown to the policy with everything that was written."""

    written: Schema

    def model_dump(self, **_: object) -> Schema:
        """Return what was written; verl shows the result to the policy."""
        return copy.deepcopy(self.written)


def show_whole_schema(tool: BaseTool | FunctionTool, of_file: Mapping[str, Schema]) -> None:
    """Let a tool's schema be shown as it was written, in the file of tools or by a function's signature."""
    schema: Any = tool.tool_schema
    written = of_file.get(tool.name)
    if written is None and isinstance(tool, FunctionTool):
        written = _of_signature(tool.fn, tool.name)
    # Otherwise a function has a schema of its own, or a class replaces that of the file.
    if written is not None and OpenAIFunctionToolSchema.model_validate(written) == schema:
        tool.tool_schema = WholeSchema(**schema.model_dump(exclude_unset=True), written=written)


def read_schemas(path: str | None) -> dict[str, Schema]:
    """Return the schemas in a file of tools by the names of their functions, as far as it has any."""
    if path is None:
        return {}
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 (verl has loaded the file by the same path)
        tools = (yaml.safe_load(file) or {}).get("tools") or ()
    schemas = [tool["tool_schema"] for tool in tools if tool.get("tool_schema")]
    return {schema["function"]["name"]: schema for schema in schemas}


def _of_signature(function: Callable[..., object], name: str) -> Schema | None:
    try:
        schema: Schema = get_json_schema(function)
    except Exception:
        # Functions with a given schema need no docstring.
        return None
    schema["function"]["name"] = name
    return schema
