"""A vLLM server as the gateway's engine, by its endpoint for tokens."""

from collections.abc import Mapping, Sequence

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from turnmill.gateway.engine import Sample
from turnmill.gateway.errors import RequestError, UnavailableError

PATH = "/inference/v1/generate"
CONNECT_SECONDS = 10.0


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _LogProb(_Part):
    logprob: float


class _LogProbs(_Part):
    content: list[_LogProb] | None = None


class _Choice(_Part):
    token_ids: list[int]
    logprobs: _LogProbs | None = None


class _Response(_Part):
    choices: list[_Choice]


class VllmEngine:
    """Sends prompts to a vLLM server, whose policy keeps its version."""

    def __init__(self, url: str, *, timeout_seconds: float, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(timeout_seconds, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None),
            transport=transport,
        )

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Mapping[str, object], *, trajectory: str, sample: int
    ) -> Sample:
        """Return one response to a prompt. Raises UnavailableError, or RequestError if the server refuses it."""
        params = {**sampling, "logprobs": 0}
        if isinstance(seed := params.get("seed"), int):
            params["seed"] = seed + sample
        try:
            response = await self._client.post(
                f"{self._url}{PATH}", json={"token_ids": list(prompt_ids), "sampling_params": params}
            )
        except httpx.HTTPError as error:
            raise UnavailableError(f"The engine at {self._url} did not answer: {error!r}.") from error
        if response.status_code >= 500 or response.status_code == 429:
            raise UnavailableError(f"The engine at {self._url} failed ({response.status_code}): {response.text:.500}")
        if response.status_code >= 400:
            raise RequestError(f"The engine at {self._url} refuses the request: {response.text:.500}")
        try:
            (choice,) = _Response.model_validate_json(response.content).choices
        except (ValidationError, ValueError) as error:
            raise UnavailableError(f"The engine at {self._url} sent no tokens: {error}") from error
        log_probs = choice.logprobs.content if choice.logprobs is not None else None
        return Sample(tuple(choice.token_ids), tuple(entry.logprob for entry in log_probs or ()))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()
