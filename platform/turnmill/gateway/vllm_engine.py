"""A vLLM server as the gateway's engine, by its endpoint for tokens."""

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import aiohttp
from pydantic_core import from_json, to_json

from turnmill.gateway.engine import Sample
from turnmill.gateway.errors import RequestError, UnavailableError

PATH = "/inference/v1/generate"
CONNECT_SECONDS = 10.0
MAX_REMEMBERED_BYTES = 32 * 1024**2
"""JSON of prompts that is remembered, of some five million tokens."""

HEADERS = {"Content-Type": "application/json"}


class VllmEngine:
    """Sends prompts to a vLLM server, whose policy keeps its version."""

    def __init__(self, url: str, *, timeout_seconds: float, key: str | None = None) -> None:
        """Take the server's address, the time that one answer may take, and the server's API key.

        The event loop must be running.
        """
        self._url = url.rstrip("/").removesuffix("/v1")
        self._prompts = PromptTexts()
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=CONNECT_SECONDS),
            connector=aiohttp.TCPConnector(limit=0),
            headers=HEADERS | ({} if key is None else {"Authorization": f"Bearer {key}"}),
        )

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Mapping[str, object], *, trajectory: str, sample: int
    ) -> Sample:
        """Return one response to a prompt. Raises UnavailableError, or RequestError if the server refuses it."""
        params = {**sampling, "logprobs": 0}
        if isinstance(seed := params.get("seed"), int):
            params["seed"] = seed + sample
        data = b'{"token_ids":%b,"sampling_params":%b}' % (self._prompts.text(trajectory, prompt_ids), to_json(params))
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
            return _read(body)
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


def _read(body: bytes) -> Sample:
    (choice,) = from_json(body)["choices"]
    log_probs = (choice.get("logprobs") or {}).get("content") or ()
    # Other types than numbers are refused.
    ids = array("I", choice["token_ids"])
    return Sample(tuple(ids), tuple(array("d", [entry["logprob"] for entry in log_probs])))


def _start(body: bytes) -> str:
    return body[:500].decode(errors="replace")
