"""Calls of the tool server by systems whose users write that themselves."""

import asyncio
import json

import aiohttp
from chaos.effects import CALL_SECONDS

OUTAGE_SECONDS, RETRIES, RETRY_SECONDS = 30.0, 20, 0.5


async def call_tool(url: str, trajectory: str, number: int, key: str) -> str:
    """Call, again after an error, and raise the last one; or TimeoutError, if no answer comes in time."""
    body = {"trajectory": trajectory, "call": number, "key": key}
    async with asyncio.timeout(OUTAGE_SECONDS), aiohttp.ClientSession() as session:
        for left in reversed(range(RETRIES + 1)):
            try:
                async with asyncio.timeout(CALL_SECONDS), session.post(url, json=body) as answer:
                    answer.raise_for_status()
                    return str(json.loads(await answer.read())["text"])
            except aiohttp.ClientError:
                if not left:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
    raise AssertionError("the last try returns or raises")
