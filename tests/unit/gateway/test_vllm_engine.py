"""A vLLM server as the engine, in the formats of vLLM's own classes."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest, GenerateResponse

from support.pictures import data_url, picture_file
from turnmill.gateway import vllm_engine
from turnmill.gateway.engine import Sample
from turnmill.gateway.errors import RequestError, UnavailableError
from turnmill.gateway.pictures import Picture, read_picture
from turnmill.gateway.server import HttpServer
from turnmill.gateway.vllm_engine import PromptTexts, VllmEngine

SAMPLING = {"max_tokens": 5, "temperature": 0.5, "stop": ["x"], "include_stop_str_in_output": True, "seed": 3}


class Server:
    """Answers every request with one response, and keeps the requests."""

    def __init__(self, status: int, text: str) -> None:
        self.bodies: list[bytes] = []
        self.keys: list[str | None] = []
        self._response = Response(text, status)

    async def generate(
        self,
        sampling: dict[str, Any],
        sample: int = 0,
        key: str | None = None,
        *,
        prompt_ids: Sequence[int] = (1, 2, 3),
        pictures: Sequence[Picture] = (),
    ) -> Sample:
        """Ask for a response to three tokens, or to others, of which 9 is the placeholder of pictures."""
        server = HttpServer(Starlette(routes=[Route("/inference/v1/generate", self._respond, methods=["POST"])]))
        server.start()
        engine = VllmEngine(f"{server.url}/v1", timeout_seconds=5, key=key, image_id=9)
        try:
            return await engine.generate(prompt_ids, sampling, trajectory="t", sample=sample, pictures=pictures)
        finally:
            await engine.close()
            await server.close()

    async def _respond(self, request: Request) -> Response:
        self.bodies.append(await request.body())
        self.keys.append(request.headers.get("authorization"))
        return self._response


async def test_a_request_and_its_response_are_those_of_vllm():
    content = [{"token": "a", "logprob": -0.5, "bytes": None, "top_logprobs": []}] * 2
    choice = {"index": 0, "token_ids": [7, 8], "logprobs": {"content": content}, "finish_reason": "stop"}
    server = Server(200, GenerateResponse.model_validate({"choices": [choice]}).model_dump_json())

    sample = await server.generate(SAMPLING, sample=1)

    assert (sample.token_ids, sample.log_probs) == ((7, 8), (-0.5, -0.5))
    sent = GenerateRequest.model_validate_json(server.bodies[0])
    assert sent.token_ids == [1, 2, 3]
    assert (sent.sampling_params.max_tokens, sent.sampling_params.logprobs, sent.sampling_params.seed) == (5, 0, 4)
    assert (sent.sampling_params.temperature, sent.sampling_params.stop) == (0.5, ["x"])


PICTURES = [read_picture(data_url(picture_file(colour))) for colour in ("red", "tan")]
WITH_PICTURES = (1, 9, 9, 9, 2, 9, 9, 3)


async def test_pictures_are_sent_as_vllm_takes_them():
    usage = {"prompt_tokens": 8, "completion_tokens": 1, "total_tokens": 9}
    response = GenerateResponse.model_validate({"choices": [{"index": 0, "token_ids": [7]}], "usage": usage})
    server = Server(200, response.model_dump_json())

    sample = await server.generate(SAMPLING, prompt_ids=WITH_PICTURES, pictures=PICTURES)

    assert sample.token_ids == (7,)
    sent = GenerateRequest.model_validate_json(server.bodies[0])
    # The server puts in the other placeholders.
    assert sent.token_ids == [1, 9, 2, 9, 3]
    assert sent.content_parts == [
        {"type": "image_url", "url": data_url(picture_file("red"))},
        {"type": "image_url", "url": data_url(picture_file("tan"))},
    ]


async def test_a_server_that_reads_other_tokens_for_a_picture_is_refused():
    server = Server(200, '{"choices": [{"token_ids": [7]}], "usage": {"prompt_tokens": 5}}')

    with pytest.raises(RequestError, match="read 5 tokens, and the prompt with its 2 pictures has 8"):
        await server.generate(SAMPLING, prompt_ids=WITH_PICTURES, pictures=PICTURES)


@pytest.mark.parametrize(("key", "sent"), [("k3y", "Bearer k3y"), (None, None)])
async def test_the_engine_gets_its_key(key: str | None, sent: str | None):
    server = Server(200, '{"choices": [{"token_ids": [7]}]}')

    await server.generate(SAMPLING, key=key)

    assert server.keys == [sent]


@pytest.mark.parametrize(
    ("status", "text", "error"),
    [
        (503, "starting", UnavailableError),
        (429, "too many", UnavailableError),
        (400, "too long", RequestError),
        (200, '{"choices": []}', UnavailableError),
        (200, '{"choices": [{"token_ids": ["a"]}]}', UnavailableError),
        (200, '{"choices": [{"token_ids": [1], "logprobs": {"content": [{"logprob": null}]}}]}', UnavailableError),
        (200, '{"choices": [3]}', UnavailableError),
        (200, "no JSON", UnavailableError),
    ],
)
async def test_a_failure_is_repeated_by_clients_and_a_refusal_is_not(status: int, text: str, error: type[Exception]):
    with pytest.raises(error):
        await Server(status, text).generate(SAMPLING)


async def test_an_engine_that_is_not_there_is_unavailable():
    engine = VllmEngine("http://127.0.0.1:9", timeout_seconds=5)

    with pytest.raises(UnavailableError, match="did not answer"):
        await engine.generate([1], SAMPLING, trajectory="t", sample=0)

    await engine.close()


def test_prompts_are_written_as_if_each_was_the_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vllm_engine, "MAX_REMEMBERED_BYTES", 60)
    chance, texts = random.Random(0), PromptTexts()
    prompts: dict[str, tuple[int, ...]] = {}
    for _ in range(500):
        trajectory = chance.choice("abc")
        before = prompts.get(trajectory, ())
        # One that goes on, is repeated, is another branch, or begins anew.
        kept = before[: chance.choice([len(before), len(before), len(before) // 2, 0])]
        prompts[trajectory] = kept + tuple(chance.randrange(100_000) for _ in range(chance.randrange(6)))

        assert json.loads(texts.text(trajectory, prompts[trajectory])) == list(prompts[trajectory])
        assert texts._num_bytes == sum(len(digits) for _, digits in texts._last.values()) <= 60


def test_only_what_a_prompt_adds_is_written(monkeypatch: pytest.MonkeyPatch):
    written: list[object] = []
    monkeypatch.setattr(vllm_engine, "to_json", lambda value: written.append(value) or json.dumps(value).encode())
    texts = PromptTexts()

    texts.text("t", (1, 2, 3))
    texts.text("t", (1, 2, 3, 4, 5))
    texts.text("t", (1, 2, 3, 4, 5))

    assert written == [[1, 2, 3], [4, 5]]
