"""Pictures in conversations of each API, with a real processor."""

import io
import random
import struct
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from PIL import Image
from vllm.multimodal.media.image import ImageMediaIO

from support.gateway import RecordedTurns, ScriptedTrajectories
from support.pictures import IMAGE, SeeingEngine, base64_of, data_url, picture_file, seeing_model
from support.vision import VisionModel, tiny_vision_model
from turnmill.gateway import pictures
from turnmill.gateway.app import create_app
from turnmill.gateway.errors import RequestError
from turnmill.gateway.pictures import read_picture
from turnmill.gateway.trajectory import Trajectory
from turnmill.testing.conversations import THINKS

RED, BLUE = picture_file("red"), picture_file("blue")
Body = dict[str, Any]


@pytest.fixture(scope="module")
def model() -> VisionModel:
    model = tiny_vision_model()
    model.tokenizer.chat_template = model.processor.chat_template = THINKS
    return model


class Gateway:
    """A gateway with one trajectory, whose policy counts its answers."""

    def __init__(self, model: VisionModel, *, eyes: bool = True, turns: Any = ()) -> None:
        self.engine = SeeingEngine(model, lambda prompt: f"seen {len(self.engine.prompts)}")
        self.record = RecordedTurns()
        served = seeing_model(model, self.engine, eyes=eyes)
        self.trajectory = Trajectory("t", served, record=self.record, turns=turns)
        self._app = create_app(ScriptedTrajectories(served, {"key": self.trajectory}))

    async def post(self, path: str, body: Body) -> httpx.Response:
        """Send a request."""
        transport = httpx.ASGITransport(self._app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway/key/v1") as client:
            return await client.post(path, json={"model": "policy", **body})

    async def answer(self, api: "Api", conversation: list[Any]) -> str:
        """Return the text that answers a conversation."""
        response = await self.post(api.path, {api.field: conversation, "max_tokens": 50})
        assert response.status_code == 200, response.text
        return api.text(response.json())


class Api:
    """A conversation in the words of one API."""

    def __init__(
        self,
        path: str,
        field: str,
        picture: Callable[[str], Body],
        text: Callable[[Any], str],
        call: Callable[[str], list[Body]],
        result: Callable[[list[Body]], Body],
    ) -> None:
        self.path, self.field, self.picture, self.text = path, field, picture, text
        self.call, self.result = call, result
        self.kind = {"/responses": "input_text"}.get(path, "text")

    def user(self, text: str, *urls: str) -> Body:
        """Return a message of the user with pictures after its text."""
        return {"role": "user", "content": [{"type": self.kind, "text": text}, *map(self.picture, urls)]}


def _anthropic_picture(url: str) -> Body:
    if not url.startswith("data:"):
        return {"type": "image", "source": {"type": "url", "url": url}}
    head, _, data = url.partition(";base64,")
    return {"type": "image", "source": {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}}


CHAT = Api(
    "/chat/completions", "messages",
    lambda url: {"type": "image_url", "image_url": {"url": url, "detail": "high"}},
    lambda body: body["choices"][0]["message"]["content"],
    lambda text: [{"role": "assistant", "content": text}],
    lambda parts: {"role": "tool", "tool_call_id": "1", "content": parts},
)  # fmt: skip
RESPONSES = Api(
    "/responses", "input",
    lambda url: {"type": "input_image", "image_url": url, "detail": "auto"},
    lambda body: body["output"][0]["content"][0]["text"],
    lambda text: [{"role": "assistant", "content": [{"type": "output_text", "text": text}]}],
    lambda parts: {"type": "function_call_output", "call_id": "1", "output": parts},
)  # fmt: skip
MESSAGES = Api(
    "/messages", "messages",
    _anthropic_picture,
    lambda body: body["content"][0]["text"],
    lambda text: [{"role": "assistant", "content": [{"type": "text", "text": text}]}],
    lambda parts: {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": parts}]},
)  # fmt: skip
every_api = pytest.mark.parametrize("api", [CHAT, RESPONSES, MESSAGES], ids=lambda api: api.path.strip("/"))


@every_api
async def test_the_policy_reads_the_pictures_of_messages_and_of_results_in_their_places(model: VisionModel, api: Api):
    gateway = Gateway(model)
    asked = [api.user("Look: ", data_url(RED))]

    asked += api.call(await gateway.answer(api, asked))
    asked.append(api.result([{"type": api.kind, "text": "a page"}, api.picture(data_url(BLUE))]))
    await gateway.answer(api, asked)

    first, second = gateway.engine.prompts
    assert f"user\nLook: {IMAGE}" in first
    assert second.startswith(first + "seen 1")
    assert f"<tool_response>\na page{IMAGE}\n</tool_response>" in second
    assert gateway.engine.colours == [[(255, 0, 0)], [(255, 0, 0), (0, 0, 255)]]
    (row,) = gateway.trajectory.rows()
    assert row.pictures == (read_picture(data_url(RED)).digest, read_picture(data_url(BLUE)).digest)
    assert (*row.prompt_ids, *row.ids)[: len(gateway.engine.prompt_ids[1])] == gateway.engine.prompt_ids[1]
    assert sum(row.mask) == sum(len(turn.response_ids) for turn in gateway.record.turns)


async def test_the_tokens_are_those_of_the_processor_for_the_whole_conversation(model: VisionModel):
    gateway = Gateway(model)
    asked = [CHAT.user("Look: ", data_url(RED), data_url(picture_file("tan", (300, 20))))]
    asked += CHAT.call(await gateway.answer(CHAT, asked))
    asked.append(CHAT.user("And: ", data_url(BLUE)))

    await gateway.answer(CHAT, asked)

    rendered = gateway.engine.prompts[1]
    while "<|image_pad|><|image_pad|>" in rendered:
        rendered = rendered.replace("<|image_pad|><|image_pad|>", "<|image_pad|>")
    images = [
        read_picture(part["image_url"]["url"]).image() for part in (*asked[0]["content"][1:], asked[2]["content"][1])
    ]
    whole = model.processor(text=[rendered], images=images, return_tensors="pt")["input_ids"][0].tolist()
    assert gateway.engine.prompt_ids[1] == tuple(whole)


@every_api
async def test_the_same_picture_continues_a_conversation_and_another_one_is_a_branch(model: VisionModel, api: Api):
    gateway = Gateway(model)
    begun = [
        api.user("Look: ", data_url(RED)),
        *api.call(await gateway.answer(api, [api.user("Look: ", data_url(RED))])),
    ]

    for file in (RED, BLUE, RED):
        await gateway.answer(api, [*begun, api.user("And: ", data_url(file))])
    await gateway.answer(api, [api.user("Look: ", data_url(BLUE)), *begun[1:], api.user("And: ", data_url(RED))])

    generations = gateway.trajectory.tree.generations
    # The repeat has its answer: nothing is sampled for it.
    assert [(each.parent, each.reason) for each in generations] == [
        (None, ""), (0, ""), (0, "sibling"), (None, "conversation")
    ]  # fmt: skip
    assert [len(row.pictures) for row in gateway.trajectory.rows()] == [2, 2, 2]
    assert len({row.pictures for row in gateway.trajectory.rows()}) == 3


@every_api
async def test_what_is_recorded_is_enough_for_another_replica(model: VisionModel, api: Api):
    first = Gateway(model)
    asked = [api.user("Look: ", data_url(RED))]
    asked += [*api.call(await first.answer(api, asked)), api.user("And: ", data_url(BLUE))]

    second = Gateway(model, turns=first.record.turns)
    await second.answer(api, asked)

    assert [each.parent for each in second.trajectory.tree.generations] == [None, 0]
    assert second.engine.colours == [[(255, 0, 0), (0, 0, 255)]]
    assert base64_of(RED) not in "".join(turn.observation for turn in first.record.turns)
    # Of thousands of placeholders, one is enough to read.
    assert first.record.turns[0].prompt_text.count("<|image_pad|>") == 1


async def test_tokens_are_counted_with_their_pictures(model: VisionModel):
    gateway, body = Gateway(model), {"messages": [MESSAGES.user("Look: ", data_url(RED))]}

    counted = await gateway.post("/messages/count_tokens", body)
    asked = await gateway.post("/messages", {**body, "max_tokens": 9})

    assert counted.json()["input_tokens"] == asked.json()["usage"]["input_tokens"] == len(gateway.engine.prompt_ids[0])


def require_refusal(response: httpx.Response, path: str, message: str) -> None:
    """Require an error in the form of an API."""
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert message in error["message"]
    assert (response.json().get("type") == "error") == (path == "/messages")


@every_api
async def test_a_model_that_reads_text_alone_says_so(model: VisionModel, api: Api):
    gateway = Gateway(model, eyes=False)

    response = await gateway.post(api.path, {api.field: [api.user("Look: ", data_url(RED))]})

    require_refusal(response, api.path, "has pictures (1), and this model reads text alone")
    assert not gateway.engine.prompts


def with_size(width: int, height: int) -> bytes:
    """Return a PNG file of some bytes that says it has this size."""
    head = b"IHDR" + struct.pack(">II", width, height) + RED[24:29]
    return RED[:12] + head + struct.pack(">I", zlib.crc32(head)) + RED[33:]


@every_api
@pytest.mark.parametrize(
    ("url", "message"),
    [
        (lambda: "https://example.org/a.png", "the gateway fetches nothing"),
        (lambda: data_url(with_size(10_000, 10_000)), "10,000 x 10,000 pixels, and 50,000,000 in all"),
        (lambda: data_url(with_size(20_000, 20_000)), "could be decompression bomb"),
        (lambda: data_url(picture_file("red", (3000, 2))), "processor refuses a picture of 3000 x 2 pixels"),
        (lambda: data_url(RED[:-30]), "its png file is broken"),
        (lambda: data_url(RED[:20]), "a picture of 20 bytes cannot be read"),
        (lambda: data_url(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), "is no file of the formats PNG, JPEG"),
        (lambda: data_url(picture_file("red", kind="TIFF")), "is no file of the formats"),
        (lambda: data_url(b""), "a picture of 0 bytes is no file"),
        (lambda: data_url(RED) + "!", "the base64 of a picture is broken"),
        (lambda: "data:image/png;base64,ä", "the base64 of a picture is broken"),
        (lambda: data_url(b"x" * (20 * 1024**2 + 1)), "20,971,521 bytes, and 20,971,520 are allowed"),
    ],
)  # fmt: skip
async def test_what_is_no_picture_or_a_too_large_one_is_refused(
    model: VisionModel, api: Api, url: Callable[[], str], message: str
):
    gateway = Gateway(model)

    response = await gateway.post(api.path, {api.field: [api.user("Look: ", url())]})

    require_refusal(response, api.path, message)
    assert not gateway.engine.prompts


@every_api
async def test_pictures_are_limited_in_number_and_altogether(
    model: VisionModel, api: Api, monkeypatch: pytest.MonkeyPatch
):
    gateway, urls = Gateway(model), [data_url(RED)] * 101

    many = await gateway.post(api.path, {api.field: [api.user("Look: ", *urls)]})
    monkeypatch.setattr(pictures, "MAX_ALL_PIXELS", 3 * 64 * 64)
    large = await gateway.post(api.path, {api.field: [api.user("Look: ", *urls[:4])]})
    allowed = await gateway.post(api.path, {api.field: [api.user("Look: ", *urls[:3])]})

    require_refusal(many, api.path, "has 101 pictures, and 100 are allowed")
    require_refusal(large, api.path, "have 16,384 pixels, and 12,288 are allowed")
    assert allowed.status_code == 200


@pytest.mark.parametrize(
    ("api", "part", "message"),
    [
        (CHAT, {"type": "image_url"}, "the address of a picture is None"),
        (CHAT, {"type": "image_url", "image_url": {"url": ["x"]}}, "the address of a picture is ['x']"),
        (CHAT, {"type": "input_audio", "input_audio": {}}, "only text and pictures are supported"),
        (RESPONSES, {"type": "input_image", "file_id": "file-1"}, "the gateway keeps no files"),
        (MESSAGES, {"type": "image"}, "a picture has a source of type None"),
        (MESSAGES, {"type": "image", "source": {"type": "file", "file_id": "1"}}, "has a source of type 'file'"),
        (MESSAGES, {"type": "image", "source": {"type": "base64"}}, "has a source of type 'base64' without data"),
    ],
)  # fmt: skip
async def test_other_parts_are_refused(model: VisionModel, api: Api, part: Any, message: str):
    response = await Gateway(model).post(api.path, {api.field: [{"role": "user", "content": [part]}]})

    require_refusal(response, api.path, message)


async def test_a_picture_of_the_assistant_is_refused(model: VisionModel):
    message = {**CHAT.user("Look: ", data_url(RED)), "role": "assistant"}

    response = await Gateway(model).post(CHAT.path, {"messages": [CHAT.user("Draw."), message, CHAT.user("And?")]})

    require_refusal(response, CHAT.path, "a message of the assistant has a picture")


@pytest.mark.parametrize("mark", ["<|image_pad|>", "<|video_pad|>"])
async def test_a_text_with_placeholders_is_refused(model: VisionModel, mark: str):
    gateway = Gateway(model)

    chat = await gateway.post(CHAT.path, {"messages": [CHAT.user(f"What is {mark}?", data_url(RED))]})
    alone = await gateway.post(CHAT.path, {"messages": [{"role": "user", "content": f"What is {mark}?"}]})
    text = await gateway.post("/completions", {"prompt": f"What is {mark}?"})

    for response, found in ((chat, 2), (alone, 1), (text, 1)):
        require_refusal(response, CHAT.path, f"has places for pictures ({found}) where no picture is")


async def test_a_placeholder_that_the_policy_generates_is_not_recorded(model: VisionModel):
    gateway = Gateway(model)
    gateway.engine._script = lambda prompt: "<|image_pad|>"

    response = await gateway.post(CHAT.path, {"messages": [CHAT.user("Draw.")]})

    assert response.status_code == 503
    assert not gateway.record.turns


async def test_pictures_that_the_template_leaves_out_are_refused(model: VisionModel):
    gateway = Gateway(model)
    options = {"chat_template": "{% for message in messages %}{{ message.role }}{% endfor %}"}

    response = await gateway.post(
        CHAT.path, {"messages": [CHAT.user("Look: ", data_url(RED))], "chat_template_kwargs": options}
    )

    require_refusal(response, CHAT.path, "none for some of its pictures (1)")


# ---- files ----


def files() -> dict[str, bytes]:
    """Return pictures in the modes and formats that files have."""
    turned = Image.new("RGB", (40, 60), "red")
    turned.paste("blue", (0, 0, 40, 20))
    exif = turned.getexif()
    exif[0x0112] = 6
    clear = Image.new("RGBA", (30, 30), (255, 0, 0, 128))
    palette = turned.convert("P")
    kinds: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "upright": (turned, {"format": "PNG"}),
        "turned": (turned, {"format": "JPEG", "exif": exif}),
        "strange exif": (turned, {"format": "JPEG", "exif": b"Exif\0\0MM\0*\0\0\0\x08\0\1" + b"\xff" * 9}),
        "clear": (clear, {"format": "PNG"}),
        "clear webp": (clear, {"format": "WEBP", "lossless": True}),
        "grey": (turned.convert("L"), {"format": "PNG"}),
        "grey and clear": (clear.convert("LA"), {"format": "PNG"}),
        "palette": (palette, {"format": "GIF"}),
        "clear palette": (palette, {"format": "PNG", "transparency": palette.getpixel((0, 0))}),
        "frames": (turned, {"format": "GIF", "save_all": True, "append_images": [Image.new("RGB", (40, 60), "tan")]}),
        "printed": (turned.convert("CMYK"), {"format": "JPEG"}),
        "deep": (Image.new("I;16", (9, 9), 40_000), {"format": "PNG"}),
    }
    found = {}
    for name, (image, options) in kinds.items():
        buffer = io.BytesIO()
        image.save(buffer, **options)
        found[name] = buffer.getvalue()
    return found


@pytest.mark.parametrize("name", files())
def test_a_file_is_read_as_vllms_server_reads_it(name: str):
    file = files()[name]

    read = read_picture(data_url(file)).image()

    expected = ImageMediaIO().load_bytes(file).media
    assert (read.mode, read.size, read.tobytes()) == (expected.mode, expected.size, expected.tobytes())


def test_broken_files_have_no_other_error():
    chance, wholes, refused = random.Random(0), list(files().values()), 0
    for _ in range(3000):
        file = bytearray(chance.choice(wholes))
        for _ in range(chance.randrange(1, 6)):
            file[chance.randrange(len(file))] = chance.randrange(256)
        del file[chance.randrange(len(file)) if chance.random() < 0.2 else len(file) :]
        try:
            read_picture(data_url(bytes(file))).image()
        except RequestError:
            refused += 1
    assert refused > 500
