"""Client of the model server behind completions, which has OpenAI's API, such as vLLM's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from turnmill.core.errors import InferenceError, TurnmillError

CONNECT_SECONDS = 5.0
CONNECT_RETRIES = 2

Messages = Sequence[Mapping[str, object]]


class UpstreamRefusedError(TurnmillError):
    """The model server rejects the request, for example because the prompt exceeds its context."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"The model server answers {status}: {detail}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Generation:
    """Result of one request to the model server."""

    text: str
    finish_reason: str
    stop: str | None
    """Stop string that ended it, if the server reports it."""

    reports_stop: bool
    """True if the server reports stop strings."""

    prompt_tokens: int
    completion_tokens: int


class Upstream:
    """Sends prompts to the model server, one at a time."""

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
        """Return the name of the served model: the configured one, or the first in the server's list."""
        if self._model is None:
            models = (await self._request("GET", "models")).get("data") or []
            if not models:
                raise InferenceError("The model server lists no model: name one with --model.")
            self._model = str(models[0]["id"])
        return self._model

    async def generate(self, prompt: str | Messages, response: str, sampling: Mapping[str, object]) -> Generation:
        """Continue a prompt or conversation, after the `response` so far.

        Raises InferenceError if the model server fails, UpstreamRefusedError if it rejects the request.
        """
        body: dict[str, object] = {**sampling, "model": await self.model(), "n": 1, "stream": False}
        if isinstance(prompt, str):
            answer = await self._request("POST", "completions", body | {"prompt": prompt + response})
        else:
            answer = await self._request("POST", "chat/completions", body | _conversation(prompt, response))
        return _generation(answer)

    async def tokenize(self, text: str) -> list[int]:
        """Return the model's tokens of a text. Raises InferenceError, also for a server without vLLM's /tokenize."""
        return await self._tokenize({"prompt": text, "add_special_tokens": False})

    async def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, special ones included. Raises InferenceError."""
        if not ids:
            return ""
        answer = await self._tokenizer_request("detokenize", {"tokens": list(ids)})
        return str(answer.get("prompt", ""))

    async def render(self, messages: Messages, template: Mapping[str, object]) -> str:
        """Return a conversation as the model's chat template formats it, up to the model's turn. Raises InferenceError.

        `template` are the request's fields for the template, such as `chat_template_kwargs`.
        """
        return await self.detokenize(
            await self._tokenize({"messages": list(messages), "add_generation_prompt": True, **template})
        )

    async def _tokenize(self, body: Mapping[str, object]) -> list[int]:
        ids = (await self._tokenizer_request("tokenize", body)).get("tokens")
        if not isinstance(ids, list):
            raise InferenceError("The model server's /tokenize answers without tokens.")
        return ids

    async def _tokenizer_request(self, name: str, body: Mapping[str, object]) -> Mapping[str, object]:
        # vLLM has these two beside /v1.
        url = str(self._http.base_url).rstrip("/").removesuffix("/v1") + f"/{name}"
        try:
            return await self._request("POST", url, {**body, "model": await self.model()})
        except UpstreamRefusedError as error:
            if error.status not in (404, 405):
                raise
            raise InferenceError(
                f"The model server has no /{name}, which --enable-mtrl and --max-obs-length need: "
                "serve the model with vLLM, or leave out these flags."
            ) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _request(self, method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
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
            raise InferenceError(f"The model server's response is not a JSON object: {response.text[:300]}")
        return answer


def _conversation(messages: Messages, response: str) -> dict[str, object]:
    """Return the messages with the response so far as an unfinished last message; vLLM has two flags for that."""
    if not response:
        return {"messages": list(messages)}
    return {
        "messages": [*messages, {"role": "assistant", "content": response}],
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
            # A number is the id of a stop token, not a stop string.
            stop=stop if isinstance(stop, str) else None,
            reports_stop="stop_reason" in choice,
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            completion_tokens=int(usage.get("completion_tokens") or 0),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InferenceError(f"The model server's response has no valid choice: {error!r}") from error
