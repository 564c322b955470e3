"""Calls of the tool server by systems whose users write that themselves."""

import asyncio
import json

import aiohttp

CALL_SECONDS, RETRIES, RETRY_SECONDS = 30.0, 20, 0.5
"""The time is that of turnmill's `toolCallTimeout`; it retries five times by default, with longer waits."""


async def call_tool(url: str, trajectory: str, number: int, key: str) -> str:
    """Call, again after an error, and raise the last one, or TimeoutError."""
    body = {"trajectory": trajectory, "call": number, "key": key}
    async with asyncio.timeout(CALL_SECONDS), aiohttp.ClientSession() as session:
        for left in reversed(range(RETRIES + 1)):
            try:
                async with session.post(url, json=body) as answer:
                    answer.raise_for_status()
                    return str(json.loads(await answer.read())["text"])
            except aiohttp.ClientError:
                if not left:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
    raise AssertionError("the last try returns or raises")
