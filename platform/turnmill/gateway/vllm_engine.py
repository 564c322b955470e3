"""A vLLM server as the gateway's engine, by its endpoint for tokens."""

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import aiohttp
from pydantic_core import from_json, to_json

from turnmill.gateway.engine import Sample
from turnmill.gateway.errors import RequestError, UnavailableError
from turnmill.gateway.messages import JsonObject
from turnmill.gateway.picture_tokens import collapsed
from turnmill.gateway.pictures import Picture

PATH = "/inference/v1/generate"
CONNECT_SECONDS = 10.0
MAX_REMEMBERED_BYTES = 32 * 1024**2
"""JSON of prompts that is remembered, of some five million tokens."""

HEADERS = {"Content-Type": "application/json"}


class VllmEngine:
    """Sends prompts to a vLLM server, whose policy keeps its version."""

    def __init__(
        self, url: str, *, timeout_seconds: float, key: str | None = None, image_id: int | None = None
    ) -> None:
        """Take the server's address, the time for one answer, its API key, and the model's placeholder of pictures.

        The event loop must be running.
        """
        self._url = url.rstrip("/").removesuffix("/v1")
        self._image_id = image_id
        self._prompts = PromptTexts()
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=CONNECT_SECONDS),
            connector=aiohttp.TCPConnector(limit=0),
            headers=HEADERS | ({} if key is None else {"Authorization": f"Bearer {key}"}),
        )

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Mapping[str, object],
        *,
        trajectory: str,
        sample: int,
        pictures: Sequence[Picture] = (),
    ) -> Sample:
        """Return one response to a prompt. Raises UnavailableError, or RequestError if the server refuses it."""
        params = {**sampling, "logprobs": 0}
        if isinstance(seed := params.get("seed"), int):
            params["seed"] = seed + sample
        # The server puts in the placeholders of the pictures itself.
        sent = prompt_ids if self._image_id is None else collapsed(prompt_ids, self._image_id).tolist()
        files = [{"type": "image_url", "url": picture.data_url()} for picture in pictures]
        data = b'{"token_ids":%b,"sampling_params":%b%b}' % (
            self._prompts.text(trajectory, sent),
            to_json(params),
            b',"content_parts":%b' % to_json(files) if files else b"",
        )
        try:
            async with self._session.post(f"{self._url}{PATH}", data=data) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnavailableError(f"The engine at {self._url} did not answer: {error!r}.") from error
        if response.status >= 500 or response.status == 429:
            raise UnavailableError(f"The engine at {self._url} failed ({response.status}): {_start(body)}")
        if response.status >= 400:
            raise RequestError(f"The engine at {self._url} refuses the request: {_start(body)}")
        try:
            answer = from_json(body)
            if pictures and (num_read := answer["usage"]["prompt_tokens"]) != len(prompt_ids):
                raise RequestError(
                    f"The engine at {self._url} read {num_read} tokens, and the prompt with its {len(pictures)} "
                    f"pictures has {len(prompt_ids)}: give engine and gateway the same model, and vLLM 0.28 or later."
                )
            return _read(answer)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise UnavailableError(f"The engine at {self._url} sent no tokens: {error!r} in {_start(body)}") from error

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()


class PromptTexts:
    """The JSON of prompts, each of which most often begins with the last one of its trajectory."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, tuple[array[int], bytes]] = OrderedDict()
        self._num_bytes = 0

    def text(self, trajectory: str, prompt_ids: Sequence[int]) -> bytes:
        """Return token ids as a JSON list."""
        ids = array("I", prompt_ids)
        before, digits = self._last.pop(trajectory, (array("I"), b""))
        self._num_bytes -= len(digits)
        if len(ids) > len(before) > 0 and ids[: len(before)] == before:
            digits = b"%b,%b" % (digits, to_json(ids[len(before) :].tolist())[1:-1])
        elif ids != before:
            digits = to_json(ids.tolist())[1:-1]
        self._last[trajectory] = ids, digits
        self._num_bytes += len(digits)
        while self._num_bytes > MAX_REMEMBERED_BYTES:
            _, (_, oldest) = self._last.popitem(last=False)
            self._num_bytes -= len(oldest)
        return b"[%b]" % digits


def _read(answer: JsonObject) -> Sample:
    (choice,) = answer["choices"]
    log_probs = (choice.get("logprobs") or {}).get("content") or ()
    # Other types than numbers are refused.
    ids = array("I", choice["token_ids"])
    return Sample(tuple(ids), tuple(array("d", [entry["logprob"] for entry in log_probs])))


def _start(body: bytes) -> str:
    return body[:500].decode(errors="replace")
