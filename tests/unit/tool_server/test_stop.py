import asyncio
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from turnmill.tool_server.worker_process import StopHandler


def server() -> Any:
    return SimpleNamespace(should_exit=False, force_exit=False)


def worker() -> Any:
    return SimpleNamespace(stopping=False)


@pytest.mark.feature("verl-tool", "graceful stop")
async def test_a_signal_stops_a_server_gracefully():
    stop, stopped_worker, uvicorn_server = StopHandler(), worker(), server()
    stop.attach(stopped_worker, uvicorn_server)

    stop(signal.SIGTERM)

    assert stopped_worker.stopping
    assert (uvicorn_server.should_exit, uvicorn_server.force_exit) == (True, False)


async def test_a_repeated_signal_stops_a_server_at_once():
    stop, uvicorn_server = StopHandler(), server()
    stop.attach(worker(), uvicorn_server)

    stop(signal.SIGTERM)
    stop(signal.SIGTERM)

    assert uvicorn_server.force_exit


async def test_ctrl_c_from_the_terminal_and_the_parent_counts_once():
    stop, uvicorn_server = StopHandler(), server()
    stop.attach(worker(), uvicorn_server)

    stop(signal.SIGINT)
    stop(signal.SIGTERM)

    assert (uvicorn_server.should_exit, uvicorn_server.force_exit) == (True, False)


async def test_a_signal_during_the_start_cancels_it():
    async def start() -> None:
        stop = StopHandler()
        stop(signal.SIGTERM)
        await asyncio.sleep(60)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(start())
