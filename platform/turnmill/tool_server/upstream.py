"""The model server behind completions: any that speaks OpenAI's API, such as vLLM's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from turnmill.core.errors import InferenceError, TurnmillError

CONNECT_SECONDS = 5.0
CONNECT_RETRIES = 2

Messages = Sequence[Mapping[str, Any]]


class UpstreamRefusedError(TurnmillError):
    """The model server finds fault with the request, such as a prompt beyond its context."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"The model server answers {status}: {detail}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Generation:
    """What a model wrote in one go."""

    text: str
    finish_reason: str
    stop: str | None
    """The stop string that ended it, where the server tells."""

    tells_stop: bool
    """Whether it would have told."""

    prompt_tokens: int
    completion_tokens: int


class Upstream:
    """Generates, one prompt at a time."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None,
        api_key: str,
        timeout_seconds: float,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._model = model
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/") + "/",
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=httpx.Timeout(timeout_seconds, connect=CONNECT_SECONDS),
            transport=transport or httpx.AsyncHTTPTransport(retries=CONNECT_RETRIES, limits=httpx.Limits()),
        )

    async def model(self) -> str:
        """The model that is served: the one that was named, or the first of the server's list."""
        if self._model is None:
            models = (await self._ask("GET", "models")).get("data") or []
            if not models:
                raise InferenceError("The model server lists no model: name one with --model.")
            self._model = str(models[0]["id"])
        return self._model

    async def generate(self, prompt: str | Messages, written: str, sampling: Mapping[str, Any]) -> Generation:
        """Go on from a prompt or a conversation, and from what was written in answer to it so far."""
        body: dict[str, Any] = {**sampling, "model": await self.model(), "n": 1, "stream": False}
        if isinstance(prompt, str):
            answer = await self._ask("POST", "completions", body | {"prompt": prompt + written})
        else:
            answer = await self._ask("POST", "chat/completions", body | _conversation(prompt, written))
        return _generation(answer)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        try:
            response = await self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise InferenceError(f"The model server at {self._http.base_url} did not answer: {reason}") from error
        if 400 <= response.status_code < 500 and response.status_code != 429:
            raise UpstreamRefusedError(response.status_code, response.text[:1000])
        try:
            response.raise_for_status()
            answer = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise InferenceError(f"The model server answers {response.status_code}: {response.text[:300]}") from error
        if not isinstance(answer, dict):
            raise InferenceError(f"The model server answers what is no object: {response.text[:300]}")
        return answer


def _conversation(messages: Messages, written: str) -> dict[str, Any]:
    """The messages, the last one open where something is written; the two switches are vLLM's."""
    if not written:
        return {"messages": list(messages)}
    return {
        "messages": [*messages, {"role": "assistant", "content": written}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    }


def _generation(answer: Mapping[str, Any]) -> Generation:
    try:
        choice = answer["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        usage = answer.get("usage") or {}
        stop = choice.get("stop_reason")
        return Generation(
            text=text or "",
            finish_reason=str(choice.get("finish_reason") or "stop"),
            # A number is the token that ended it, which is no stop string.
            stop=stop if isinstance(stop, str) else None,
            tells_stop="stop_reason" in choice,
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            completion_tokens=int(usage.get("completion_tokens") or 0),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InferenceError(f"The model server answers without a choice: {error!r}") from error
