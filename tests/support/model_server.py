"""A model server with OpenAI's API and scripted responses."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx


class ScriptedModel:
    """Generates one text per request, cut at the first stop string as a model server cuts it.

    `stop_reason` names the stop string as with vLLM; with `tells_stop=False` it is left out as with OpenAI.
    As in vLLM, /tokenize and /detokenize are beside /v1; a token is a character, and a chat has the template of ChatML.
    """

    def __init__(self, texts: Sequence[str], *, name: str = "scripted", tells_stop: bool = True) -> None:
        self.name = name
        self.requests: list[dict[str, Any]] = []
        self.answer: Callable[[dict[str, Any]], httpx.Response | None] = lambda body: None
        """Replaces the scripted response where it returns one."""

        self.listing: httpx.Response | None = None
        """The response in place of the list of models."""

        self.tokenizes = True
        """False for a server without /tokenize."""

        self._texts = list(texts)
        self._tells_stop = tells_stop

    def transport(self) -> httpx.MockTransport:
        """Return a transport that calls this server without a network."""
        return httpx.MockTransport(self.respond)

    def respond(self, request: httpx.Request) -> httpx.Response:
        """Answer a request."""
        if request.url.path.endswith("/models"):
            return self.listing or httpx.Response(200, json={"data": [{"id": self.name}]})
        body = json.loads(request.content)
        if request.url.path in ("/tokenize", "/detokenize") and not self.tokenizes:
            return httpx.Response(404)
        if request.url.path == "/tokenize":
            text = body["prompt"] if "prompt" in body else chatml(body["messages"])
            return httpx.Response(200, json={"tokens": [ord(character) for character in text]})
        if request.url.path == "/detokenize":
            return httpx.Response(200, json={"prompt": "".join(map(chr, body["tokens"]))})
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


def chatml(messages: Sequence[dict[str, str]]) -> str:
    """Return messages in the format of ChatML, up to the response."""
    turns = [f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages]
    return "".join([*turns, "<|im_start|>assistant\n"])


@contextmanager
def served(model: ScriptedModel) -> Iterator[str]:
    """Serve a model over HTTP while the context lasts; yield the base URL of its API."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["Content-Length"])))

        def _answer(self, content: bytes) -> None:
            request = httpx.Request(
                self.command, f"http://model{self.path}", headers=dict(self.headers), content=content
            )
            response = model.respond(request)
            self.send_response(response.status_code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(response.content)))
            self.end_headers()
            self.wfile.write(response.content)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
