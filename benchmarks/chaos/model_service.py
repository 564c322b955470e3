"""A model server with OpenAI's API, for systems that are given one: what it answers follows from what it is asked."""

import asyncio
import hashlib
import json
import sys

from aiohttp import web
from chaos.effects import TURNS

GENERATION_SECONDS = 0.2


async def answer(request: web.Request) -> web.Response:
    """Call the tool until it was called often enough."""
    body = await request.json()
    await asyncio.sleep(GENERATION_SECONDS)
    text = hashlib.blake2b(json.dumps(body["messages"], sort_keys=True).encode(), digest_size=4).hexdigest()
    calls = sum(message["role"] == "tool" for message in body["messages"])
    message: dict[str, object] = {"role": "assistant", "content": text}
    if calls < TURNS:
        function = {"name": "count", "arguments": json.dumps({"number": calls + 1})}
        message["tool_calls"] = [{"id": f"call-{calls + 1}", "type": "function", "function": function}]
    choice = {"index": 0, "finish_reason": "tool_calls" if calls < TURNS else "stop", "message": message}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return web.json_response(
        {
            "id": "answer",
            "object": "chat.completion",
            "created": 0,
            "model": "tiny",
            "choices": [choice],
            "usage": usage,
        }
    )


if __name__ == "__main__":
    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
