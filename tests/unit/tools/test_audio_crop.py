import base64
import io
import json

import numpy as np
import pytest
import soundfile

from turnmill.core.errors import ToolFailedError
from turnmill.testing.tool_calls import Dialogue, make_tool

RATE = 8000


def sound(seconds: float = 5.0, channels: int = 1) -> str:
    """A sound whose amplitude rises from 0 to 1, as a data URL."""
    samples = np.linspace(0, 1, round(seconds * RATE))
    samples = np.stack([samples] * channels, axis=1) if channels > 1 else samples
    soundfile.write(buffer := io.BytesIO(), samples, RATE, format="WAV")
    return f"data:audio/wav;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def samples_of(url: str) -> np.ndarray:
    assert url.startswith("data:audio/wav;base64,")
    samples, rate = soundfile.read(io.BytesIO(base64.b64decode(url.partition(",")[2])))
    assert rate == RATE
    return samples


def crop(window: object, number: object = 1) -> str:
    call = {"name": "audio_crop", "arguments": {"time_window": window, "target_audio": number}}
    return f"<tool_call>{json.dumps(call)}</tool_call>"


@pytest.mark.feature("verl-tool", "crops of images, frames and sound")
@pytest.mark.parametrize("key", ["audios", "audio"])
async def test_a_clip_is_cut_from_sounds_under_either_key(key):
    talk = Dialogue(make_tool("audio_crop"), {key: [sound()]})

    observation = await talk.say(crop([1, 3.5]))

    assert observation == (
        "<audio>This is the audio clip (1.00s - 3.50s) from the original audio #1 according to your request."
    )
    samples = samples_of(talk.result.observation["audio"])
    assert len(samples) == 2.5 * RATE
    assert samples[0] == pytest.approx(0.2, abs=0.001)
    assert samples[-1] == pytest.approx(0.7, abs=0.001)


async def test_a_window_beyond_the_end_is_shortened_and_reported():
    talk = Dialogue(make_tool("audio_crop"), {"audios": {"audio": sound(channels=2)}})

    assert "(3.00s - 5.00s)" in await talk.say(crop([3, 99]))
    assert samples_of(talk.result.observation["audio"]).shape == (2 * RATE, 2)


async def test_a_clip_can_be_cut_again_on_any_replica():
    talk = Dialogue(make_tool("audio_crop"), {"audios": [sound()]})
    await talk.say(crop([1, 4]))
    talk.tool, talk.extra = make_tool("audio_crop"), {}

    assert "(1.00s - 2.00s) from the original audio #2" in await talk.say(crop([1, 2], number=2))
    assert samples_of(talk.result.observation["audio"])[0] == pytest.approx(0.4, abs=0.001)


async def test_a_call_may_be_an_action_without_tags():
    talk = Dialogue(make_tool("audio_crop"), {"audios": [sound()]})

    assert await talk.say('{"tool_name": "audio_crop", "arguments": {"time_window": [0, 1], "target_audio": "1"}}')
    assert talk.result.valid


@pytest.mark.parametrize(
    ("window", "number", "observation"),
    [
        ([1], 1, "Audio crop arguments error: time_window must be a list of two numbers."),
        (["a", 2], 1, "Audio crop arguments error: time_window values must be numeric."),
        ([0, float("inf")], 1, "Audio crop arguments error: time_window values must be finite."),
        ([2, 1], 1, "Audio crop arguments error: time_window end must be greater than start."),
        ([1, 1.5], 1, "Audio crop arguments error: time_window duration 0.50s is below the minimum 1.00s."),
        ([0, 2], 2, "Audio crop arguments error: target_audio must be between 1 and 1."),
        ([0, 2], None, "Audio crop arguments error: target_audio must be an integer."),
        ([9, 12], 1, "Audio crop failed: Cropped segment duration is zero or negative."),
        (
            [4.5, 9],
            1,
            "Audio crop failed: Cropped audio is only 0.50s, shorter than the minimum 1.00s required. "
            "Please request a longer time window.",
        ),
    ],
)
async def test_an_invalid_call_is_reported(window, number, observation):
    talk = Dialogue(make_tool("audio_crop"), {"audios": [sound()]})

    assert await talk.say(crop(window, number)) == observation
    assert not talk.result.valid


async def test_a_call_without_sounds_is_reported():
    talk = Dialogue(make_tool("audio_crop"))

    assert await talk.say(crop([0, 1])) == "No audio sources supplied for cropping."


async def test_a_sound_that_cannot_be_read_fails_the_call():
    talk = Dialogue(make_tool("audio_crop"), {"audios": ["data:audio/wav;base64,AAAA"]})

    with pytest.raises(ToolFailedError, match="A sound of the trajectory cannot be read"):
        await talk.say(crop([0, 1]))
