"""The environment server's HTTP application: OpenEnv's endpoints, and its sessions over WebSockets."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

from pydantic import BaseModel, JsonValue, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from turnmill import __version__
from turnmill.core.http_access import AccessMiddleware
from turnmill.core.http_connections import answer_nobody
from turnmill.environment_server.conversation import Conversation, problems
from turnmill.environment_server.messages import (
    EpisodeState,
    JsonObject,
    ProtocolError,
    ResetRequest,
    StepRequest,
    TextAction,
    TextObservation,
    json_text,
    observation_data,
)
from turnmill.environment_server.session import Sessions

RequestModel = TypeVar("RequestModel", bound=BaseModel)

JSON_RPC_NO_METHOD = -32601


@dataclass(frozen=True, slots=True)
class Description:
    """Name and description of the environment."""

    name: str
    text: str


class RefusedRequestError(Exception):
    """A request is answered with an error."""

    def __init__(self, status: HTTPStatus, detail: JsonValue) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def create_app(
    sessions: Sessions,
    description: Description,
    *,
    allowed_hosts: Iterable[str] = (),
    token: str | None = None,
    idle_seconds: float,
    max_message_bytes: int,
) -> Starlette:
    """Return the application."""

    async def play(socket: WebSocket) -> None:
        await Conversation(socket, sessions, idle_seconds=idle_seconds).run()

    routes = [*_descriptions(sessions, description), *_single_requests(sessions, max_message_bytes)]
    return Starlette(
        routes=[*routes, _openapi(routes, description), WebSocketRoute("/ws", play)],
        middleware=[Middleware(AccessMiddleware, allowed_hosts=allowed_hosts, token=token)],
        exception_handlers={
            RefusedRequestError: _refuse,
            HTTPException: _unknown_path,
            ClientDisconnect: answer_nobody,
        },
    )


def _descriptions(sessions: Sessions, description: Description) -> list[Route]:
    async def health(request: Request) -> Response:
        """Return whether sessions may begin."""
        if sessions.draining.is_set():
            return _json({"status": "unhealthy"}, HTTPStatus.SERVICE_UNAVAILABLE)
        return _json({"status": "healthy"})

    async def metadata(request: Request) -> Response:
        """Return name and description of the environment."""
        return _json({"name": description.name, "description": description.text, "version": __version__})

    async def schema(request: Request) -> Response:
        """Return the JSON schemas of actions, observations and states."""
        models: dict[str, type[BaseModel]] = {
            "action": TextAction,
            "observation": TextObservation,
            "reset_observation": TextObservation,
            "state": EpisodeState,
        }
        return _json({name: model.model_json_schema() for name, model in models.items()})

    async def tools(request: Request) -> Response:
        """Say that there are no tools, by the protocol of MCP."""
        error: dict[str, JsonValue] = {"code": JSON_RPC_NO_METHOD, "message": "The environment has no tools: use /ws."}
        return _json({"jsonrpc": "2.0", "id": None, "error": error})

    return [
        Route("/health", health),
        Route("/metadata", metadata),
        Route("/schema", schema),
        Route("/mcp", tools, methods=["POST"]),
    ]


def _single_requests(sessions: Sessions, max_bytes: int) -> list[Route]:
    """Return the requests outside of sessions, each of which has an environment of its own, as in OpenEnv's server."""

    async def reset(request: Request) -> Response:
        """Return the first observation of an episode, which ends at once: for episodes, use /ws."""
        parsed = _parse(ResetRequest, await _read_body(request, max_bytes) or b"{}")
        try:
            async with sessions.open() as session:
                return _json(observation_data(await session.reset(parsed)))
        except ProtocolError as error:
            is_failure = error.code == "EXECUTION_ERROR"
            status = HTTPStatus.INTERNAL_SERVER_ERROR if is_failure else HTTPStatus.SERVICE_UNAVAILABLE
            raise RefusedRequestError(status, str(error)) from error

    async def step(request: Request) -> Response:
        """Refuse a step, as there is no episode outside of a session."""
        _parse(StepRequest, await _read_body(request, max_bytes))
        raise RefusedRequestError(HTTPStatus.CONFLICT, "Outside of a session there is no episode: use /ws.")

    async def state(request: Request) -> Response:
        """Return the state of an environment without an episode."""
        return _json(EpisodeState().model_dump())

    return [Route("/reset", reset, methods=["POST"]), Route("/step", step, methods=["POST"]), Route("/state", state)]


def _openapi(routes: Sequence[Route], description: Description) -> Route:
    """Return the list of all paths in the form of OpenAPI, by which OpenEnv's validation knows a server."""
    paths: dict[str, JsonValue] = {
        route.path: {
            method.lower(): {"summary": route.endpoint.__doc__, "responses": {"200": {"description": "JSON"}}}
            for method in sorted(route.methods or ())
            if method != "HEAD"
        }
        for route in routes
    }
    info: dict[str, JsonValue] = {"title": f"turnmill: {description.name}", "version": __version__}

    async def openapi(request: Request) -> Response:
        return _json({"openapi": "3.1.0", "info": info, "paths": paths})

    return Route("/openapi.json", openapi)


def _parse(model: type[RequestModel], body: bytes) -> RequestModel:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise RefusedRequestError(HTTPStatus.UNPROCESSABLE_ENTITY, problems(error)) from error


async def _read_body(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > max_bytes:
            raise RefusedRequestError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The body is larger than {max_bytes} bytes (--max-message-bytes)."
            )
    return bytes(body)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedRequestError)
    return _json({"detail": error.detail}, error.status)


async def _unknown_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"detail": f"{request.method} {request.url.path}: {error.detail}."}, HTTPStatus(error.status_code))


def _json(data: JsonObject, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(json_text(data), status, media_type="application/json")
