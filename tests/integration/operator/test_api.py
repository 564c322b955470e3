"""The operator's client of the API server, over HTTP."""

import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from turnmill_operator.api import JOBS, ApiClient, ApiError


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("86400", 60.0), ("soon", 0.0), (None, 0.0)])
async def test_an_overloaded_server_says_for_how_long_it_wants_to_be_left_alone(header: str | None, seconds: float):
    async def overloaded(_: web.Request) -> web.Response:
        headers = {} if header is None else {"Retry-After": header}
        return web.json_response({"message": "too many requests"}, status=429, headers=headers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", overloaded)
    async with TestServer(app) as server:
        client = ApiClient(lambda: kopf.ConnectionInfo(server=str(server.make_url("/")).rstrip("/")))
        with pytest.raises(ApiError) as caught:
            await client.get(JOBS, "team-a", "job")
        await client.close()

    assert (caught.value.code, caught.value.retry_after) == (429, seconds)
