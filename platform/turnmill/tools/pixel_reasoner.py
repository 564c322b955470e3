"""The tool `pixel_reasoner`: crops images of a trajectory, and selects some of them as frames."""

import json
from collections.abc import Mapping
from typing import ClassVar

from turnmill.tools import settings
from turnmill.tools.base import Tool, ToolCall, ToolContext, ToolResult
from turnmill.tools.code_blocks import function_call
from turnmill.tools.images import SizeLimits, UnusableCropError, crop, read_image, resized, to_jpeg
from turnmill.tools.media import Media, MediaLimits, data_url
from turnmill.tools.processor_threads import compute
from turnmill.tools.registry import register

CROPS = ("zoom_in", "crop_image", "crop_image_normalized")
SELECT = "select_frames"
MAX_FRAMES = 64
_MAX_COORDINATE = 1e9
_FULL = "No more pictures can be kept for this task. Go on with those that you have."


class _BadCallError(ValueError):
    """An invalid call; the message is for the agent."""


@register
class PixelReasoner(Tool):
    """Crops images and selects frames; each result is an image with the next number."""

    name: ClassVar[str] = "pixel_reasoner"
    stateful: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ("pillow",)

    def __init__(self, context: ToolContext) -> None:
        super().__init__(context)
        values = context.settings
        self._limits = MediaLimits.from_settings(values, "IMAGE")
        multiple = settings.count(values, "IMAGE_SIDE_MULTIPLE", 28, least=1)
        self._sizes = SizeLimits(
            multiple,
            settings.count(values, "IMAGE_MIN_PIXELS", 4 * multiple**2, least=1),
            settings.count(values, "IMAGE_MAX_PIXELS", 16384 * multiple**2, least=multiple**2),
        )

    def usage(self) -> str:
        """Return one line on how to call it."""
        call = '{"name": "crop_image", "arguments": {"bbox_2d": [x1, y1, x2, y2], "target_image": 1}}'
        return f"Crop a picture with <tool_call>{call}</tool_call>; pictures are numbered from 1."

    def parse(self, action: str) -> str | None:
        """Return the call if it is for one of the tool's functions."""
        call = function_call(action) if "<tool_call>" in action else None
        return json.dumps(call) if call and call.get("name") in (*CROPS, SELECT) else None

    async def call(self, call: ToolCall) -> ToolResult:
        """Execute the call."""
        media = Media(call.state, call.extra, ("images", "image"), self._limits)
        try:
            return await compute(self._execute, json.loads(call.parsed), media)
        except _BadCallError as error:
            return ToolResult(str(error), valid=False)
        except UnusableCropError as error:
            return ToolResult(f"Error processing image: {error}.", valid=False)

    def _execute(self, wanted: Mapping[str, object], media: Media) -> ToolResult:
        if "arguments" not in wanted:
            raise _BadCallError("Missing 'arguments' in the tool call.")
        arguments = wanted["arguments"]
        if not isinstance(arguments, dict):
            raise _BadCallError("'arguments' should be a dictionary of parameters key-value pairs.")
        if wanted["name"] == SELECT:
            images = [read_image(media.read(number)) for number in _frames(arguments, len(media))]
        else:
            number, box = _target(arguments, len(media)), _box(arguments)
            images = [crop(read_image(media.read(number)), box)]
        images = [resized(image, self._sizes) for image in images]
        files = [to_jpeg(image) for image in images]
        change = media.change_with(files)
        if change is None:
            raise _BadCallError(_FULL)
        urls = [data_url("image/jpeg", file) for file in files]
        size = "x".join(map(str, images[0].size))
        if wanted["name"] == SELECT:
            text = f"Here are the selected frames. (Frame Size: {size}, Numbered 1 to {len(urls)}):"
            return ToolResult({"obs": text + "<image>" * len(urls), "image": urls}, change=change)
        text = f"Here is the cropped image. (Image Size: {size})\n<image>"
        return ToolResult({"obs": text, "image": urls[0]}, change=change)


def _target(arguments: Mapping[str, object], num_images: int) -> int:
    lacking = [name for name in ("bbox_2d", "target_image") if name not in arguments]
    if lacking:
        raise _BadCallError(f"Missing parameters: {', '.join(lacking)}")
    try:
        number = int(arguments["target_image"])  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        number = 0
    if not 1 <= number <= num_images:
        raise _BadCallError(
            "Invalid target_image index. It should be an integer between 1 and the number of previous images "
            f"({num_images})."
        )
    return int(number)


def _box(arguments: Mapping[str, object]) -> list[float]:
    box = arguments["bbox_2d"]
    if not isinstance(box, list) or len(box) != 4 or not all(_is_number(entry) for entry in box):
        raise _BadCallError("Invalid bbox_2d format. It should be a list of four numbers.")
    return list(box)


def _is_number(entry: object) -> bool:
    return isinstance(entry, int | float) and not isinstance(entry, bool) and abs(entry) < _MAX_COORDINATE


def _frames(arguments: Mapping[str, object], num_images: int) -> list[int]:
    if "target_frames" not in arguments:
        raise _BadCallError("Missing parameters: target_frames")
    frames = arguments["target_frames"]
    if not isinstance(frames, list) or not frames:
        raise _BadCallError("Invalid target_frames format. It should be a list of integers.")
    if len(frames) > MAX_FRAMES:
        raise _BadCallError(f"Too many target_frames: {len(frames)}, and {MAX_FRAMES} are shown at once.")
    if not all(type(frame) is int and 1 <= frame <= num_images for frame in frames):
        raise _BadCallError(
            "Invalid target_frames indices. Each index should be an integer between 1 and the number of previous "
            f"images ({num_images})."
        )
    return list(frames)
