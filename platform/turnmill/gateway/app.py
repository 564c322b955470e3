"""The gateway's HTTP application: reads a call, finds its trajectory, and sends the answer or the error."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from turnmill.core.errors import InferenceError, OvertakenError, StaleClaimError, StoreError, TurnmillError
from turnmill.core.http_connections import answer_nobody
from turnmill.gateway.answers import Answer, AnswerRequest
from turnmill.gateway.apis.anthropic import MESSAGES
from turnmill.gateway.apis.base import Api, ApiCall, ErrorBody, json_text, openai_error
from turnmill.gateway.apis.chat import CHAT
from turnmill.gateway.apis.completions import COMPLETIONS
from turnmill.gateway.apis.responses import RESPONSES
from turnmill.gateway.bodies import BodyReader, BodyReaders
from turnmill.gateway.errors import (
    BodySizeError,
    GatewayError,
    NotFoundError,
    StaleTrajectoryError,
    UnavailableError,
    UnknownKeyError,
)
from turnmill.gateway.messages import JsonObject
from turnmill.gateway.trajectory import Model

APIS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)

QUIET_SECONDS, COMMENT_SECONDS = 30.0, 5.0
"""Time after which a stream begins although there is no answer yet, and time between two comments in it."""

MAX_BODY_BYTES = 64 * 1024**2

log = logging.getLogger(__name__)


class Trajectories(Protocol):
    """The trajectories of a gateway."""

    model: Model

    async def answer(self, key: str, request: AnswerRequest) -> list[Answer]:
        """Return the answers to a request of the trajectory with a key. Raises UnknownKeyError."""


Handler = Callable[[Request], Awaitable[Response]]


def create_app(trajectories: Trajectories) -> Starlette:
    """Return the application. A trajectory's key is a bearer token, the header `x-api-key`, or a path before `/v1`."""
    model = trajectories.model
    bodies = BodyReaders()

    async def health(request: Request) -> Response:
        return _json({"status": "ok"})

    async def models(request: Request) -> Response:
        return _json({"object": "list", "data": [_listed(model)], "has_more": False})

    async def one_model(request: Request) -> Response:
        if (name := request.path_params["name"]) != model.name:
            raise NotFoundError(f"The model {name!r} does not exist: {model.name!r} does.")
        return _json(_listed(model))

    async def count_tokens(request: Request) -> Response:
        body = BodyReader(MESSAGES.path, MESSAGES.conversation).read(await read_body(request))
        asked = MESSAGES.read(body, model.renderer).request
        prompt = await asyncio.to_thread(model.renderer.opening, asked.messages, asked.tools, asked.template)
        return _json({"input_tokens": len(prompt)})

    routes: list[BaseRoute] = [Route("/health", health)]
    for start in ("/v1", "/{key}/v1"):
        routes += [
            Route(f"{start}/models", _answered(models, openai_error)),
            Route(f"{start}/models/{{name:path}}", _answered(one_model, openai_error)),
            Route(f"{start}/messages/count_tokens", _answered(count_tokens, MESSAGES.error), methods=["POST"]),
            *(
                Route(
                    f"{start}{api.path}", _answered(_endpoint(api, trajectories, bodies), api.error), methods=["POST"]
                )
                for api in APIS
            ),
        ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _unknown_path, ClientDisconnect: answer_nobody})


def _endpoint(api: Api, trajectories: Trajectories, bodies: BodyReaders) -> Handler:
    async def handle(request: Request) -> Response:
        key = key_of(request)
        body = bodies.read(key, api.path, api.conversation, await read_body(request))
        call = api.read(body, trajectories.model.renderer)
        if not call.stream:
            return _json(call.response(await trajectories.answer(key, call.request)))
        answering = asyncio.create_task(trajectories.answer(key, call.request))
        try:
            # What fails meanwhile has its status: clients repeat the request.
            await asyncio.wait({answering}, timeout=QUIET_SECONDS)
        except asyncio.CancelledError:
            answering.cancel()
            raise
        events = call.events(answering.result()) if answering.done() else _events_once_answered(call, api, answering)
        return StreamingResponse(events, media_type="text/event-stream")

    return handle


async def _events_once_answered(call: ApiCall, api: Api, answering: asyncio.Task[list[Answer]]) -> AsyncIterator[str]:
    """Yield comments, so that neither the client nor a proxy takes the stream for dead, and the events at last."""
    try:
        while not answering.done():
            yield ": the policy is answering\n\n"
            await asyncio.wait({answering}, timeout=COMMENT_SECONDS)
        for each in call.events(answering.result()):
            yield each
    except _ERRORS as error:
        yield api.error_event(_as_gateway_error(error))
    finally:
        answering.cancel()


def _answered(handle: Handler, error_body: ErrorBody) -> Handler:
    """Return a handler that sends errors in the form of its API."""

    async def answered(request: Request) -> Response:
        try:
            return await handle(request)
        except _ERRORS as error:
            return _refusal(_as_gateway_error(error), error_body)

    return answered


_ERRORS = (GatewayError, OvertakenError, InferenceError, StoreError)


def _as_gateway_error(error: TurnmillError) -> GatewayError:
    if isinstance(error, GatewayError):
        return error
    is_stale = isinstance(error, (OvertakenError, StaleClaimError))
    return StaleTrajectoryError(str(error)) if is_stale else UnavailableError(str(error))


def key_of(request: Request) -> str:
    """Return the key of a request. Raises UnknownKeyError if it has none."""
    if key := request.path_params.get("key"):
        return str(key)
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    key = token.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
    if not key:
        raise UnknownKeyError("The request has no key: give the trajectory's as API key, or in the base URL's path.")
    return key


async def read_body(request: Request) -> bytes:
    """Return the body. Raises BodySizeError for one that is too large."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise BodySizeError(f"The body is larger than {MAX_BODY_BYTES} bytes.")
    return bytes(body)


async def _unknown_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    problem = NotFoundError(f"{request.method} {request.url.path}: {error.detail}.")
    return _refusal(problem, openai_error, status=error.status_code)


def _refusal(error: GatewayError, error_body: ErrorBody, *, status: int | None = None) -> Response:
    log.info("Request refused", extra={"status": error.status, "code": error.code, "what": str(error)})
    response = _json(error_body(error), status or error.status)
    if error.status >= 500:
        response.headers["Retry-After"] = "1"
    return response


def _json(data: JsonObject, status: int = 200) -> Response:
    return Response(json_text(data), status, media_type="application/json")


def _listed(model: Model) -> JsonObject:
    """Return a model with the fields of OpenAI's and of Anthropic's lists."""
    return {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "turnmill",
        "max_model_len": model.max_context_tokens,
        "type": "model",
        "display_name": model.name,
        "created_at": "1970-01-01T00:00:00Z",
    }
