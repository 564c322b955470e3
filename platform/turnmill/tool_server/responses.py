"""Responses of several endpoints."""

import json
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from turnmill.core.errors import InferenceError, ToolError
from turnmill.tool_server.requests import BodyError, BodyTimeoutError, BodyTooLargeError
from turnmill.tool_server.schemas import Detail, Failure

# A store that fails over, or a sandbox that restarts, is back within a second or two.
RETRY_AFTER = {"Retry-After": "1"}

REFUSALS: dict[int | str, dict[str, Any]] = {
    408: {"model": Detail, "description": "The body did not arrive in time"},
    409: {"model": Failure, "description": "The trajectory has failed: do not send the call again"},
    413: {"model": Detail, "description": "The body is too large"},
    422: {"model": Detail, "description": "The body or a header is not what it must be"},
    503: {"model": Failure, "description": "Infrastructure failed; nothing is half done, send it again"},
}
"""Error responses of every endpoint with a body, for the OpenAPI description."""


def body_schema(model: type[BaseModel]) -> dict[str, object]:
    """Return the OpenAPI description of a body that the endpoint itself reads."""
    schema = model.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def call_failure(error: ToolError | InferenceError, detail: str = "") -> Response:
    """Return 503, or 409 for an error that a repeat of the call would meet again."""
    if isinstance(error, ToolError) and error.is_final:
        return JSONResponse({"detail": detail or str(error), "cause": error.cause}, status_code=409)
    return failure(detail or str(error), error.cause)


def failure(detail: str, cause: str) -> Response:
    """Return 503: infrastructure failed, and the client may retry."""
    return JSONResponse({"detail": detail, "cause": cause}, status_code=503, headers=RETRY_AFTER)


def json_response(body: dict[str, object]) -> Response:
    """Return 200 with JSON escaped to ASCII, as programs may print half a surrogate pair, which UTF-8 cannot encode."""
    return Response(json.dumps(body, separators=(",", ":")), media_type="application/json")


async def refuse_body(request: Request, error: Exception) -> Response:
    """Return 422 in FastAPI's format."""
    assert isinstance(error, BodyError)
    return JSONResponse({"detail": error.detail}, status_code=422)


async def refuse_size(request: Request, error: Exception) -> Response:
    """Return 413 and close the connection, on which the rest of the body may still come."""
    assert isinstance(error, BodyTooLargeError)
    return JSONResponse({"detail": str(error)}, status_code=413, headers={"Connection": "close"})


async def refuse_slow_body(request: Request, error: Exception) -> Response:
    """Return 408 and close the connection, on which the rest of the body may still come."""
    assert isinstance(error, BodyTimeoutError)
    return JSONResponse({"detail": str(error)}, status_code=408, headers={"Connection": "close"})
