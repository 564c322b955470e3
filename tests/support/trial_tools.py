"""Tools of verl's for tests: they note what is done with them."""

from typing import Any, ClassVar

from PIL import Image
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse

SCALES_FILE = """
tools:
  - class_name: support.trial_tools.Scales
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
  - class_name: support.trial_tools.Camera
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
"""A file of functions; the last one returns what it may not."""


class Scales(BaseTool):
    """Weighs, in the unit that it was made with; `notes` tells of every instance."""

    notes: ClassVar[list[str]] = []

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """An instance."""
        unit = kwargs["create_kwargs"].get("unit", self.config.get("unit", "kg"))
        self.notes.append(f"create {unit}")
        return unit, ToolResponse(text="dropped")

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[Any, float, dict[str, Any]]:
        """The weight; what is lighter than nothing breaks it, `text` is said back."""
        self.notes.append(f"execute {parameters}")
        if parameters.get("weight", 0) < 0:
            raise ValueError("too light")
        if parameters.get("weight") == 0:
            raise ConnectionRefusedError("the scales are away")
        text = parameters.get("text") or f"{parameters['weight']} {instance_id}"
        return ToolResponse(text=text), 0.5, {"n": 1}

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Let it go."""
        self.notes.append(f"release {instance_id}")


class Camera(BaseTool):
    """Takes a picture of one colour."""

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[Any, float, dict[str, Any]]:
        """A picture; a colour that is none breaks the rules of images, `film` those of videos."""
        colour = parameters["colour"]
        if colour == "none":
            return ToolResponse(image="no list"), 0.0, {}
        if colour == "film":
            return ToolResponse(video=["film"]), 0.0, {}
        return ToolResponse(image=[Image.new("RGB", (64, 64), colour)], text=f"all {colour}"), 0.0, {}
