"""The tool server of plain verl: `POST /` with `trajectory`, `call` and `key` takes effect and returns the number.

It keeps nothing, so that one that is started again continues the work.
"""

import asyncio
import sys

from aiohttp import web
from chaos.effects import TOOL_SECONDS, take_effect


async def answer(request: web.Request) -> web.Response:
    """Take effect."""
    fields = await request.json()
    await asyncio.sleep(TOOL_SECONDS / 2)
    take_effect(fields["trajectory"], fields["call"], fields["key"])
    await asyncio.sleep(TOOL_SECONDS / 2)
    return web.json_response({"text": str(fields["call"])})


if __name__ == "__main__":
    app = web.Application()
    app.router.add_post("/", answer)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
