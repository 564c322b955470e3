import asyncio
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from turnmill.tool_server.serve import Stop


def server() -> Any:
    return SimpleNamespace(should_exit=False, force_exit=False)


def worker() -> Any:
    return SimpleNamespace(stopping=False)


async def test_a_signal_ends_a_server_in_order():
    stop, told, ended = Stop(), worker(), server()
    stop.tells(told, ended)

    stop(signal.SIGTERM)

    assert told.stopping
    assert (ended.should_exit, ended.force_exit) == (True, False)


async def test_the_same_signal_again_ends_it_at_once():
    stop, ended = Stop(), server()
    stop.tells(worker(), ended)

    stop(signal.SIGTERM)
    stop(signal.SIGTERM)

    assert ended.force_exit


async def test_ctrl_c_that_comes_from_the_terminal_and_from_the_parent_counts_once():
    stop, ended = Stop(), server()
    stop.tells(worker(), ended)

    stop(signal.SIGINT)
    stop(signal.SIGTERM)

    assert (ended.should_exit, ended.force_exit) == (True, False)


async def test_a_signal_before_there_is_a_server_gives_up_the_start():
    async def start() -> None:
        stop = Stop()
        stop(signal.SIGTERM)
        await asyncio.sleep(60)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(start())
