"""A model server that speaks OpenAI's API and writes what it is told to."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx


class ScriptedModel:
    """Writes one text per request, cut at the first stop string as a model server cuts it.

    As vLLM does it names the string in `stop_reason`; with `tells_stop=False` it keeps it to itself, as OpenAI does.
    """

    def __init__(self, texts: Sequence[str], *, name: str = "scripted", tells_stop: bool = True) -> None:
        self.name = name
        self.requests: list[dict[str, Any]] = []
        self.answer: Callable[[dict[str, Any]], httpx.Response | None] = lambda body: None
        """Answers in place of the script, where it answers at all."""

        self.listing: httpx.Response | None = None
        """What it answers in place of the list of its models."""

        self._texts = list(texts)
        self._tells_stop = tells_stop

    def transport(self) -> httpx.MockTransport:
        """The way to it without a network."""
        return httpx.MockTransport(self.respond)

    def respond(self, request: httpx.Request) -> httpx.Response:
        """Answer a request."""
        if request.url.path.endswith("/models"):
            return self.listing or httpx.Response(200, json={"data": [{"id": self.name}]})
        body = json.loads(request.content)
        self.requests.append(body)
        other = self.answer(body)
        return other if other is not None else httpx.Response(200, json=self._written(body))

    def _written(self, body: dict[str, Any]) -> dict[str, Any]:
        text = self._texts.pop(0)
        found = [(text.index(stop), stop) for stop in body.get("stop") or () if stop in text]
        end, stop = min(found, default=(len(text), None))
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
        if self._tells_stop:
            choice["stop_reason"] = stop
        if "messages" in body:
            choice["message"] = {"role": "assistant", "content": text[:end]}
            before = sum(len(str(message["content"]).split()) for message in body["messages"])
        else:
            choice["text"] = text[:end]
            before = len(body["prompt"].split())
        usage = {"prompt_tokens": before, "completion_tokens": len(text[:end].split())}
        return {"choices": [choice], "usage": usage}
