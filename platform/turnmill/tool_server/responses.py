"""The forms in which endpoints answer."""

import json
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from turnmill.tool_server.messages import Detail, Failure
from turnmill.tool_server.requests import BodyError, BodyTooLargeError

# A store that fails over, or a sandbox that starts anew, is there again within a second or two.
RETRY_AFTER = {"Retry-After": "1"}

REFUSALS: dict[int | str, dict[str, Any]] = {
    413: {"model": Detail, "description": "The body is too large"},
    422: {"model": Detail, "description": "The body or a header is not what it must be"},
    503: {"model": Failure, "description": "Infrastructure failed; nothing is half done, send it again"},
}
"""What every endpoint with a body may answer."""


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The description of a body that the endpoint reads by itself."""
    schema = model.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def failure(detail: str, cause: str) -> Response:
    """Infrastructure failed; the client may come back."""
    return JSONResponse({"detail": detail, "cause": cause}, status_code=503, headers=RETRY_AFTER)


def json_response(body: dict[str, Any]) -> Response:
    """Escaped: output of programs may hold half of a surrogate pair, which UTF-8 has no bytes for."""
    return Response(json.dumps(body, separators=(",", ":")), media_type="application/json")


async def refuse_body(request: Request, error: Exception) -> Response:
    """422, as FastAPI answers."""
    assert isinstance(error, BodyError)
    return JSONResponse({"detail": error.detail}, status_code=422)


async def refuse_size(request: Request, error: Exception) -> Response:
    """413."""
    assert isinstance(error, BodyTooLargeError)
    return JSONResponse({"detail": str(error)}, status_code=413)
