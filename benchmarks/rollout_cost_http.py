"""verl's loop and turnmill's with their tool behind HTTP, for `rollout_cost.py`: FOLDER SYSTEM SIZE, see the harness.

A server in a process of its own answers every call with the same text; its processor time is not counted. verl's loop
and `multi_turn` ask it by an asynchronous function with a session of aiohttp, `tool` by its client of tool servers.
"""

import asyncio
import atexit
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from aiohttp import web
from rollout_cost_harness import Engine, Play, main
from rollout_cost_verl import PLAYERS as IN_PROCESS
from rollout_cost_verl import multi_turn, tool, verl_loop

TOOL = '''
import aiohttp
from verl.tools.function_tool import function_tool

session = None


@function_tool
async def look_up(name: str):
    """Return the text of a page.

    Args:
        name: The name of the page.
    """
    global session
    if session is None:
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    async with session.post("%s/look_up", json={"name": name}) as response:
        response.raise_for_status()
        return await response.text()
'''
SERVE = "serve"

# ---- the systems ----


def by_function(prepare: Callable[..., Play]) -> Callable[[Engine, Path, Path], Play]:
    """Return what prepares a loop whose tool is a function that asks the server."""

    def prepare_with_server(engine: Engine, folder: Path, run_dir: Path) -> Play:
        path = run_dir.with_name(f"{run_dir.name}_tool.py")
        path.write_text(TOOL % _started_server(folder))
        return prepare(engine, folder, run_dir, function=path)

    return prepare_with_server


def tool_server(engine: Engine, folder: Path, run_dir: Path) -> Play:
    """Prepare `tool` with its own client."""
    return tool(engine, folder, run_dir, url=_started_server(folder))


PREPARED = {"verl": by_function(verl_loop), "multi_turn": by_function(multi_turn), "tool": tool_server}
PLAYERS = {f"{name}_http": IN_PROCESS[name]._replace(prepare=prepare) for name, prepare in PREPARED.items()}
"""What is measured, by name."""

# ---- the server ----


def _started_server(folder: Path) -> str:
    """Start the server, which ends with this process; return its URL."""
    process = subprocess.Popen(
        [sys.executable, __file__, SERVE, str(folder / "observation.txt")], stdout=subprocess.PIPE, text=True
    )
    atexit.register(process.terminate)
    assert process.stdout is not None
    return process.stdout.readline().strip()


async def serve(text: str) -> None:
    """Answer until SIGTERM, as a plain tool and as a tool server that knows calls by their `call_id`."""

    async def look_up(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(text=text)

    async def get_observation(request: web.Request) -> web.Response:
        finishes = (await request.json())["finish"] == [True]
        observation = "" if finishes else text
        return web.json_response({"observations": [observation], "dones": [finishes], "valids": [True]})

    async def health(request: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "call_ids": True})

    app = web.Application()
    app.add_routes(
        [web.post("/look_up", look_up), web.post("/get_observation", get_observation), web.get("/health", health)]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
    await site.start()
    host, port = runner.addresses[0]
    print(f"http://{host}:{port}", flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await runner.cleanup()


if __name__ == "__main__":
    if sys.argv[1] == SERVE:
        asyncio.run(serve(Path(sys.argv[2]).read_text()))
    else:
        main(PLAYERS)
