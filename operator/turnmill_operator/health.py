"""The HTTP server for `/healthz`, `/readyz` and `/metrics`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from turnmill_operator import metrics
from turnmill_operator.operator_process import Operator


@asynccontextmanager
async def health_server(operator: Operator, port: int) -> AsyncIterator[int]:
    """Serve until the block ends and yield the port. Port 0 takes a free one, on the loopback interface only."""

    async def healthz(_: web.Request) -> web.Response:
        problem = operator.health_problem()
        return web.Response(text=problem or "ok", status=503 if problem else 200)

    async def readyz(_: web.Request) -> web.Response:
        synced = operator.synced.is_set()
        return web.Response(text="ok" if synced else "jobs have not been listed yet", status=200 if synced else 503)

    async def get_metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", get_metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        # All interfaces over IPv4 and IPv6; a port that is to be free is chosen on one of them.
        site = web.TCPSite(runner, None if port else "127.0.0.1", port)
        await site.start()
        assert runner.addresses
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
