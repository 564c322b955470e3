"""Servers with OpenEnv's protocol, in a thread of this process, and an MCP environment."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from websockets.sync.server import ServerConnection, serve

Reply = dict[str, Any]
Session = Callable[[ServerConnection], None]


def observation(content: Reply, reward: float | None = None, done: bool = False) -> Reply:
    """Return the reply to a reset or a step."""
    return {"type": "observation", "data": {"observation": content, "reward": reward, "done": done}}


def error(message: str, code: str) -> Reply:
    """Return an error."""
    return {"type": "error", "data": {"message": message, "code": code}}


def called(name: str, **content: Any) -> Reply:
    """Return the observation of a call, as FastMCP's results are written."""
    return {"tool_name": name, "result": None, "error": None, "metadata": {}} | content


@contextmanager
def served(session: Session) -> Iterator[str]:
    """Serve connections, each by a call of `session`, and yield the address."""
    with serve(session, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()


class Vault:
    """A vault with a number lock: `look` costs a tenth, `open` with the last digit of the seed ends it with 1.

    `wait` has no reward, `burst` breaks the connection, `phone` does not reach anybody.
    """

    def __init__(self, opening_reward: float | None = None) -> None:
        """Take the reward of the reset."""
        self.opening_reward = opening_reward
        self.sessions: list[list[Reply]] = []
        """The messages of each session."""

    def __call__(self, connection: ServerConnection) -> None:
        """Serve a session."""
        messages: list[Reply] = []
        self.sessions.append(messages)
        seed = 0
        for raw in connection:
            messages.append(message := json.loads(raw))
            if message["type"] == "close":
                return
            if message["type"] == "reset":
                seed = message["data"]["seed"]
                question = {"question": "Which digit opens it?"}
                reply = observation({"metadata": question}, self.opening_reward)
            elif message["type"] == "mcp":
                reply = {"type": "mcp", "data": {"jsonrpc": "2.0", "id": 1, "result": {"tools": TOOLS}}}
            elif message["data"]["tool_name"] == "burst":
                return
            else:
                reply = self._call(message["data"], seed % 10)
            connection.send(json.dumps(reply))

    def _call(self, call: Reply, secret: int) -> Reply:
        name, arguments = call["tool_name"], call["arguments"]
        if name == "look":
            text = f"a lock, {arguments.get('with', 'bare eyes')}"
            return observation(called(name, result={"content": [{"type": "text", "text": text}], "data": None}), -0.1)
        if name == "open":
            is_open = arguments.get("digit") == secret
            return observation({"metadata": {"is_open": is_open}}, float(is_open), True)
        if name == "wait":
            return observation(called(name, result={"content": [], "data": {"minutes": 5}}))
        reason = "transport_error" if name == "phone" else "tool_not_found"
        return observation(called(name, error={"error_type": reason, "message": f"Unknown tool: {name}"}))


TOOLS = [
    {"name": "look", "description": "Look at it.", "inputSchema": {"type": "object", "properties": {}}},
    {
        "name": "open",
        "description": "Open it.",
        "inputSchema": {"type": "object", "properties": {"digit": {"type": "integer"}}, "required": ["digit"]},
    },
    {"name": "wait", "description": None, "inputSchema": {"type": "object", "properties": {}}},
]
