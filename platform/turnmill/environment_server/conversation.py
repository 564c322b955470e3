"""A client's conversation with its session, over a WebSocket."""

import asyncio
import json
from collections.abc import Coroutine
from contextlib import suppress

from pydantic import JsonValue, ValidationError
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from turnmill.environment_server.messages import (
    MESSAGES,
    ClientMessage,
    CloseMessage,
    JsonObject,
    ProtocolError,
    ResetMessage,
    SessionEndError,
    StateMessage,
    StepMessage,
    json_text,
    observation_data,
)
from turnmill.environment_server.session import Session, Sessions, stopping


class Conversation:
    """Answers a client's messages one after another, until it leaves, is idle for too long, or the server stops."""

    def __init__(self, socket: WebSocket, sessions: Sessions, *, idle_seconds: float) -> None:
        self._socket = socket
        self._sessions = sessions
        self._idle_seconds = idle_seconds
        self._next: asyncio.Task[Message] | None = None
        """The client's next message, or its end, which is awaited during an answer, too."""

    async def run(self) -> None:
        """Hold the conversation; a client that goes away ends it."""
        with suppress(WebSocketDisconnect):
            await self._socket.accept()
            try:
                async with self._sessions.open() as session:
                    await self._answer_all(session)
            except SessionEndError as error:
                await self._send(error.as_message())
            finally:
                if self._next is not None:
                    self._next.cancel()
            await self._socket.close()

    async def _answer_all(self, session: Session) -> None:
        while True:
            try:
                message = parse_message(await self._receive(session))
                if isinstance(message, CloseMessage):
                    return
                await self._send(await self._unless_gone(self._answer(session, message)))
            except ProtocolError as error:
                await self._send(error.as_message())
                if isinstance(error, SessionEndError):
                    return

    async def _answer(self, session: Session, message: ClientMessage) -> JsonObject:
        match message:
            case ResetMessage():
                if self._sessions.draining.is_set():
                    raise stopping()
                return {"type": "observation", "data": observation_data(await session.reset(message.data))}
            case StepMessage():
                return {"type": "observation", "data": observation_data(await session.step(message.data))}
            case StateMessage():
                return {"type": "state", "data": session.state.model_dump()}
            case CloseMessage():
                raise AssertionError("a conversation ends with this message")

    async def _receive(self, session: Session) -> str | bytes:
        """Return the next message. Raises SessionEndError if none comes in time, or the server stops meanwhile."""
        end = self._sessions.ended if session.state.in_progress else self._sessions.draining
        message, ended = self._next_message(), asyncio.create_task(end.wait())
        try:
            await asyncio.wait({message, ended}, timeout=self._idle_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if message.done():
            self._next = None
            return _content(message.result())
        if end.is_set():
            raise stopping()
        raise SessionEndError("SESSION_ERROR", f"The session was idle for {self._idle_seconds:g} s.")

    async def _unless_gone(self, answer: Coroutine[None, None, JsonObject]) -> JsonObject:
        """Return an answer; give it up, with its environment, as soon as the client goes away."""
        answering, message = asyncio.create_task(answer), self._next_message()
        try:
            await asyncio.wait({answering, message}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                _content(message.result())
            return await answering
        finally:
            answering.cancel()
            await asyncio.wait({answering})

    def _next_message(self) -> asyncio.Task[Message]:
        if self._next is None:
            self._next = asyncio.create_task(self._socket.receive())
        return self._next

    async def _send(self, message: JsonObject) -> None:
        await self._socket.send_text(json_text(message))


def parse_message(raw: str | bytes) -> ClientMessage:
    """Parse a client's message. Raises ProtocolError."""
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("INVALID_JSON", f"Invalid JSON: {error}") from error
    kind = content.get("type") if isinstance(content, dict) else None
    model = MESSAGES.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise ProtocolError("UNKNOWN_TYPE", f"Unknown message type: {kind!s:.100}. Send one of: {', '.join(MESSAGES)}.")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ProtocolError(
            "VALIDATION_ERROR", f"Invalid message: {place:.100}: {first['msg']}", errors=problems(error)
        ) from error


def problems(error: ValidationError) -> list[JsonValue]:
    """Return what is wrong with a message, one entry per field."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [{"type": each["type"], "loc": list(each["loc"]), "msg": each["msg"]} for each in found]


def _content(message: Message) -> str | bytes:
    """Return the text of a message. Raises WebSocketDisconnect if it is the client's end."""
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect
    content: str | bytes = message.get("text") or message.get("bytes") or ""
    return content
