"""Tools in verl's interface that record how they are called."""

from typing import Any, ClassVar

from PIL import Image
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse

SCALES_FILE = """
tools:
  - class_name: support.verl_tools.Scales
    config: {type: native, unit: lb}
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
"""The file that names `Scales`."""

CAMERA_FILE = """
tools:
  - class_name: support.verl_tools.Camera
    config: {type: native}
    tool_schema:
      type: function
      function:
        name: photograph
        description: Takes a picture.
        parameters: {type: object, properties: {colour: {type: string}}, required: [colour]}
"""
"""The file that names `Camera`."""

FUNCTIONS_FILE = '''
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


@function_tool
def four() -> str:
    """Returns too much."""
    return "one", 2, {}, 4
'''
"""A file of functions; the last one returns a tuple of the wrong length."""


class Scales(BaseTool):
    """Weighs in the unit that it was created with; `calls` records the calls of all instances."""

    calls: ClassVar[list[str]] = []

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Create an instance."""
        unit = kwargs["create_kwargs"].get("unit", self.config.get("unit", "kg"))
        self.calls.append(f"create {unit}")
        return unit, ToolResponse(text="dropped")

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[Any, float | None, dict[str, Any]]:
        """Return the weight, or `text`, rewarded up to 100; a negative weight is a bug, zero a failed connection."""
        self.calls.append(f"execute {parameters}")
        if parameters.get("weight", 0) < 0:
            raise ValueError("too light")
        if parameters.get("weight") == 0:
            raise ConnectionRefusedError("the scales are unavailable")
        text = parameters.get("text") or f"{parameters['weight']} {instance_id}"
        return ToolResponse(text=text), 0.5 if parameters.get("weight", 0) <= 100 else None, {"n": 1}

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Release the instance."""
        self.calls.append(f"release {instance_id}")


class Camera(BaseTool):
    """Takes a picture of one colour."""

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[Any, float, dict[str, Any]]:
        """Return a picture; the colours `none` and `film` return an invalid image and an invalid video."""
        colour = parameters["colour"]
        if colour == "none":
            return ToolResponse(image="no list"), 0.0, {}
        if colour == "film":
            return ToolResponse(video=["film"]), 0.0, {}
        return ToolResponse(image=[Image.new("RGB", (64, 64), colour)], text=f"all {colour}"), 0.0, {}
