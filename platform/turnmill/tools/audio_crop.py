"""The tool `audio_crop`: cuts clips from a trajectory's audio files."""

import io
import json
from collections.abc import Mapping
from typing import ClassVar

from turnmill.core.errors import ToolFailedError
from turnmill.tools.base import Tool, ToolCall, ToolContext, ToolResult
from turnmill.tools.code_blocks import function_call
from turnmill.tools.media import Media, MediaLimits, data_url
from turnmill.tools.processor_threads import compute
from turnmill.tools.registry import register

LEAST_SECONDS = 1.0
_MAX_SECONDS = 1e9


class _BadArgumentError(ValueError):
    """An invalid argument; the message is for the agent."""


class _NoClipError(ValueError):
    """There is no such clip; the message is for the agent."""


@register
class AudioCrop(Tool):
    """Cuts out a clip; each result is an audio file with the next number."""

    name: ClassVar[str] = "audio_crop"
    stateful: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ("soundfile",)

    def __init__(self, context: ToolContext) -> None:
        super().__init__(context)
        self._limits = MediaLimits.from_settings(context.settings, "AUDIO")

    def usage(self) -> str:
        """Return one line on how to call it."""
        call = '{"name": "audio_crop", "arguments": {"target_audio": 1, "time_window": [start, end]}}'
        return f"Cut out a stretch of a sound with <tool_call>{call}</tool_call>, in seconds; sounds count from 1."

    def parse(self, action: str) -> str | None:
        """Return the arguments of a call, which may also be the whole action."""
        call = function_call(action)
        if call is None or (call.get("name") or call.get("tool_name")) != self.name:
            return None
        arguments = call.get("arguments", {})
        return json.dumps(arguments) if isinstance(arguments, dict) else None

    async def call(self, call: ToolCall) -> ToolResult:
        """Cut out the clip."""
        media = Media(call.state, call.extra, ("audios", "audio"), self._limits)
        if not len(media):
            return ToolResult("No audio sources supplied for cropping.", valid=False)
        try:
            return await compute(_cut, json.loads(call.parsed), media)
        except _BadArgumentError as error:
            return ToolResult(f"Audio crop arguments error: {error}", valid=False)
        except _NoClipError as error:
            return ToolResult(f"Audio crop failed: {error}", valid=False)


def _cut(arguments: Mapping[str, object], media: Media) -> ToolResult:
    window, number = _window(arguments.get("time_window")), _number(arguments.get("target_audio"), len(media))
    file, start, end = _clip(media.read(number), *window)
    change = media.change_with([file])
    if change is None:
        raise _NoClipError("No more sounds can be kept for this task.")
    text = (
        f"<audio>This is the audio clip ({start:.2f}s - {end:.2f}s) from the original audio #{number} "
        "according to your request."
    )
    return ToolResult({"obs": text, "audio": data_url("audio/wav", file)}, change=change)


def _window(given: object) -> tuple[float, float]:
    if not isinstance(given, list) or len(given) != 2:
        raise _BadArgumentError("time_window must be a list of two numbers.")
    try:
        start, end = (float(entry) for entry in given)
    except (TypeError, ValueError, OverflowError) as error:
        raise _BadArgumentError("time_window values must be numeric.") from error
    if not (abs(start) < _MAX_SECONDS and abs(end) < _MAX_SECONDS):
        raise _BadArgumentError("time_window values must be finite.")
    if end <= start:
        raise _BadArgumentError("time_window end must be greater than start.")
    if end - start < LEAST_SECONDS:
        raise _BadArgumentError(f"time_window duration {end - start:.2f}s is below the minimum {LEAST_SECONDS:.2f}s.")
    return start, end


def _number(given: object, num_sounds: int) -> int:
    try:
        number = int(given)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError) as error:
        raise _BadArgumentError("target_audio must be an integer.") from error
    if not 1 <= number <= num_sounds:
        raise _BadArgumentError(f"target_audio must be between 1 and {num_sounds}.")
    return int(number)


def _clip(file: bytes, start: float, end: float) -> tuple[bytes, float, float]:
    """Return the part of an audio file within the window as WAV, with its start and end in seconds."""
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(file)) as sound:
            rate = sound.samplerate
            first, last = (min(max(round(second * rate), 0), sound.frames) for second in (start, end))
            sound.seek(first)
            samples = sound.read(max(last - first, 0))
    except soundfile.SoundFileError as error:
        raise ToolFailedError(f"A sound of the trajectory cannot be read: {error}.") from error
    if not len(samples):
        raise _NoClipError("Cropped segment duration is zero or negative.")
    seconds = len(samples) / rate
    if seconds < LEAST_SECONDS:
        raise _NoClipError(
            f"Cropped audio is only {seconds:.2f}s, shorter than the minimum {LEAST_SECONDS:.2f}s required. "
            "Please request a longer time window."
        )
    soundfile.write(buffer := io.BytesIO(), samples, rate, format="WAV")
    return buffer.getvalue(), first / rate, (first + len(samples)) / rate
