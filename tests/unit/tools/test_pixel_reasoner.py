import base64
import io
import json

import pytest
from PIL import Image

from turnmill.core.errors import ToolFailedError
from turnmill.testing.tool_calls import Dialogue, make_tool


def picture(width: int = 400, height: int = 200, color: str = "white") -> Image.Image:
    """A picture whose right half is red."""
    image = Image.new("RGB", (width, height), color)
    image.paste("red", (width // 2, 0, width, height))
    return image


def as_url(image: Image.Image) -> str:
    image.save(buffer := io.BytesIO(), format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def decode_image(url: str) -> Image.Image:
    assert url.startswith("data:image/jpeg;base64,")
    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))


def crop(box: object, number: object = 1, name: str = "crop_image") -> str:
    call = {"name": name, "arguments": {"bbox_2d": box, "target_image": number}}
    return f"Look: <tool_call>{json.dumps(call)}</tool_call>"


def dialogue(*images: Image.Image, **settings: str) -> Dialogue:
    return Dialogue(make_tool("pixel_reasoner", **settings), {"images": [as_url(image) for image in images]})


@pytest.mark.feature("verl-tool", "crops of images, frames and sound")
@pytest.mark.parametrize(
    ("name", "box"), [("crop_image", [240, 40, 360, 160]), ("crop_image_normalized", [0.6, 0.2, 0.9, 0.8])]
)
async def test_a_crop_has_a_margin_of_a_tenth_and_sides_that_are_multiples_of_28(name, box):
    talk = dialogue(picture())

    observation = await talk.say(crop(box, name=name))

    # 240 - 40 to 360 + 40 and 40 - 20 to 160 + 20: 200 by 160, each to the closest multiple of 28.
    assert observation == "Here is the cropped image. (Image Size: 196x168)\n<image>"
    cropped = decode_image(talk.result.observation["image"])
    assert cropped.size == (196, 168)
    assert cropped.getpixel((100, 80)) == pytest.approx((255, 0, 0), abs=40)
    assert (talk.result.done, talk.result.valid) == (False, True)


async def test_a_small_crop_is_enlarged():
    talk = dialogue(picture(40, 20))

    assert "(Image Size: 84x56)" in await talk.say(crop([0.1, 0.1, 0.9, 0.9]))


async def test_a_large_crop_is_reduced():
    talk = dialogue(picture(2000, 1000), IMAGE_MAX_PIXELS="100000")

    assert "(Image Size: 420x196)" in await talk.say(crop([0, 0, 1, 1]))


async def test_a_crop_can_be_cropped_again_on_any_replica():
    talk = dialogue(picture())
    await talk.say(crop([0.6, 0.2, 0.9, 0.8]))
    talk.tool = make_tool("pixel_reasoner")
    talk.extra = {}

    assert "(Image Size: " in await talk.say(crop([0.5, 0.5, 0.9, 0.9], number=2))
    assert talk.result.valid


@pytest.mark.feature("verl-tool", "crops of images, frames and sound")
async def test_selected_frames_are_returned_together_and_numbered():
    talk = dialogue(picture(), picture(color="blue"))
    call = {"name": "select_frames", "arguments": {"target_frames": [2, 1]}}

    observation = await talk.say(f"<tool_call>{json.dumps(call)}</tool_call>")

    assert observation == "Here are the selected frames. (Frame Size: 392x196, Numbered 1 to 2):<image><image>"
    assert decode_image(talk.result.observation["image"][0]).getpixel((10, 10))[2] > 200
    await talk.say(crop([0.1, 0.1, 0.4, 0.9], number=4))
    assert talk.result.valid


@pytest.mark.parametrize(
    ("action", "observation"),
    [
        (crop([1, 2, 3]), "Invalid bbox_2d format. It should be a list of four numbers."),
        (crop([1, 2, 3, "4"]), "Invalid bbox_2d format. It should be a list of four numbers."),
        (crop([0, 0, float("nan"), 1]), "Invalid bbox_2d format. It should be a list of four numbers."),
        (crop([0, 0, 10**400, 1]), "Invalid bbox_2d format. It should be a list of four numbers."),
        (
            crop([300, 0, 100, 90]),
            "Error processing image: the box [300, 0, 100, 90] is empty in a picture of 400x200.",
        ),
        (
            crop([0, 0, 9, 9], number=2),
            "Invalid target_image index. It should be an integer between 1 and the number of previous images (1).",
        ),
        ('<tool_call>{"name": "zoom_in"}</tool_call>', "Missing 'arguments' in the tool call."),
        (
            '<tool_call>{"name": "zoom_in", "arguments": {}}</tool_call>',
            "Missing parameters: bbox_2d, target_image",
        ),
        (
            '<tool_call>{"name": "select_frames", "arguments": {"target_frames": []}}</tool_call>',
            "Invalid target_frames format. It should be a list of integers.",
        ),
    ],
)
async def test_an_invalid_call_is_reported(action, observation):
    talk = Dialogue(make_tool("pixel_reasoner"), {"images": [as_url(picture())]})

    parsed = talk.tool.parse(action)
    assert parsed is not None
    result = await talk.say(action)

    assert result == observation
    assert not talk.result.valid


def test_calls_of_other_tools_are_not_taken():
    tool = make_tool("pixel_reasoner")

    assert tool.parse('<tool_call>{"name": "search"}</tool_call>') is None
    assert tool.parse('{"name": "crop_image"}') is None
    assert tool.parse("<tool_call>{</tool_call>") is None


async def test_files_are_read_only_from_the_folder_of_images(tmp_path):
    picture().save(tmp_path / "a.png")
    (tmp_path / "inner").mkdir()
    inside = Dialogue(make_tool("pixel_reasoner", IMAGE_FOLDER=str(tmp_path)), {"images": ["a.png"]})
    outside = Dialogue(make_tool("pixel_reasoner", IMAGE_FOLDER=str(tmp_path / "inner")), {"images": ["../a.png"]})

    assert "cropped image" in await inside.say(crop([0, 0, 1, 1]))
    (tmp_path / "inner" / "link.png").symlink_to(tmp_path / "a.png")
    linked = Dialogue(outside.tool, {"images": ["link.png"]})
    for dialogue in (outside, linked):
        with pytest.raises(ToolFailedError, match=r"is not in IMAGE_FOLDER"):
            await dialogue.say(crop([0, 0, 1, 1]))


async def test_without_a_folder_of_images_no_file_is_read(tmp_path):
    picture().save(tmp_path / "a.png")

    with pytest.raises(ToolFailedError, match="name one with --set IMAGE_FOLDER=FOLDER, or send data URLs"):
        await Dialogue(make_tool("pixel_reasoner"), {"images": [str(tmp_path / "a.png")]}).say(crop([0, 0, 1, 1]))


@pytest.mark.parametrize("source", ["nowhere.png", "data:image/png;base64,////", "data:image/png;base64,?"])
async def test_a_picture_that_cannot_be_read_fails_the_call(source):
    talk = Dialogue(make_tool("pixel_reasoner"), {"images": [source]})

    with pytest.raises(ToolFailedError):
        await talk.say(crop([0, 0, 1, 1]))


async def test_a_crop_beyond_the_limit_of_the_state_is_refused():
    talk = dialogue(picture(), IMAGE_MAX_STATE_BYTES="10")

    assert await talk.say(crop([0, 0, 1, 1])) == (
        "No more pictures can be kept for this task. Go on with those that you have."
    )
