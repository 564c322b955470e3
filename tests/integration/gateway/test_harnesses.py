"""Agents of others from their packages, unchanged, against the gateway: each token is recorded as it was sampled."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from support.gateway import (
    CORPUS,
    RecordedTurns,
    ScriptedEngine,
    ScriptedTrajectories,
    bpe_tokenizer,
    require_exact_rows,
    scripted_model,
)
from support.harnesses import CHAT, ECHO, HARNESSES, MESSAGES, PATH, RESPONSES, Harness, addresses
from turnmill.core.errors import InferenceError
from turnmill.gateway.app import create_app
from turnmill.gateway.server import HttpServer
from turnmill.gateway.trajectory import Trajectory
from turnmill.rollout.harness.program import Ended, filled, run_program

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

PROMPT = "Run echo with your shell tool, or add 2 and 40, and stop."
MISSING = [name for name, harness in HARNESSES.items() if not harness.is_installed]
TITLES = (["tools"], ["conversation"], ["system"])
"""Branches of opencode's request for a title, by what comes first."""

STREAMING = ("codex", "claude-code", "opencode", "qwen-code")

Script = Callable[[str], str]


def written(name: str, arguments: Mapping[str, object]) -> str:
    """Return a call as the policy writes it."""
    return f"I do it.\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def script_of(harness: Harness) -> Script:
    """Return what calls the tool once and ends; other requests, such as that for a title, get a text."""

    def script(prompt: str) -> str:
        if f" {harness.call[0]}" not in prompt.partition("<|im_end|>")[0]:
            return "A title"
        results = prompt.replace(CORPUS[1], "").count("<tool_response>")
        if not results:
            return written(*harness.call)
        return written(*harness.end) if harness.end and results == 1 else "All is done."

    return script


class Gateway:
    """A gateway with one trajectory, which may cut its first streams."""

    def __init__(self, script: Script, *, cuts: int = 0) -> None:
        self.engine = ScriptedEngine(script)
        model = scripted_model(self.engine, max_context_tokens=400_000)
        self.trajectory = Trajectory("t", model, record=RecordedTurns(), max_turns=20)
        self.cuts = cuts
        self.server = HttpServer(self._cutting(create_app(ScriptedTrajectories(model, {"secret": self.trajectory}))))
        self.server.start()

    def _cutting(self, app: ASGIApp) -> Any:
        async def cutting(scope: Scope, receive: Receive, send: Send) -> None:
            async def send_or_cut(message: Message) -> None:
                if message["type"] == "http.response.body" and b"data: " in message["body"] and self.cuts:
                    body: bytes = message["body"]
                    if b"I do it" in body or b"item.done" in body or b"content_block_delta" in body:
                        self.cuts -= 1
                        await send(message)
                        raise ConnectionError("The stream is cut.")
                await send(message)

            await app(scope, receive, send_or_cut)

        return cutting

    async def run(self, harness: Harness, folder: Path) -> Ended:
        """Run a program to its end, as a run of agents of type `harness` does."""
        url = self.server.url
        values = {"prompt": PROMPT, "url": url, "key": "secret", "workspace": str(folder), "model": "policy"}
        return await run_program(
            filled(harness.command, values),
            task={"prompt": PROMPT, "messages": [{"role": "user", "content": PROMPT}], "info": {}, "number": 0},
            variables=addresses(url, "secret") | {"PATH": PATH} | dict(harness.variables),
            workspace=folder,
            timeout_seconds=240,
            stop=asyncio.Event(),
        )

    @property
    def conversation(self) -> str:
        """The longest prompt."""
        return bpe_tokenizer().decode(max(self.engine.prompts, key=len))

    @property
    def branches(self) -> list[str]:
        """Why each branch began."""
        return [generation.reason for generation in self.trajectory.tree.generations if generation.reason]


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., Gateway]]:
    gateways: list[Gateway] = []

    def begin(script: Script, **options: Any) -> Gateway:
        gateways.append(Gateway(script, **options))
        return gateways[-1]

    yield begin
    for gateway in gateways:
        await gateway.server.close()


def installed(name: str) -> Harness:
    if name in MISSING:
        pytest.skip("`make harnesses` has not installed it")
    return HARNESSES[name]


@pytest.mark.parametrize("name", HARNESSES)
async def test_its_conversation_with_a_call_is_one_row(name: str, tmp_path: Path, start: Callable[..., Gateway]):
    harness = installed(name)
    gateway = start(script_of(harness))

    ended = await gateway.run(harness, tmp_path)

    assert (ended.how, ended.exit_code) == ("exited", 0), ended.last_words
    # It has run the command, or the sum. Qwen Code loses the output at times, on a busy machine.
    result = gateway.conversation.partition("<tool_response>")[2]
    assert "42" in result or harness.end or (name == "qwen-code" and "Exit Code: 0" in result)
    require_exact_rows(gateway.trajectory, gateway.engine)
    # Only opencode asks for more than its conversation: for a title, at once or meanwhile.
    assert gateway.branches in (TITLES if name == "opencode" else ([],))


@pytest.mark.parametrize("name", HARNESSES)
async def test_an_engine_that_fails_once_costs_no_turn(name: str, tmp_path: Path, start: Callable[..., Gateway]):
    harness = installed(name)
    gateway = start(script_of(harness))
    gateway.engine.errors = [InferenceError("The engine died.")]

    ended = await gateway.run(harness, tmp_path)

    assert (ended.how, ended.exit_code) == ("exited", 0), ended.last_words
    assert gateway.engine.errors == []
    require_exact_rows(gateway.trajectory, gateway.engine)
    # If it is opencode's request for a title that fails, it goes without.
    assert len(gateway.trajectory.rows()) in ((1, 2) if name == "opencode" else (1,)), gateway.branches


@pytest.mark.parametrize("name", STREAMING)
async def test_a_stream_that_is_cut_costs_no_turn(name: str, tmp_path: Path, start: Callable[..., Gateway]):
    harness = installed(name)
    gateway = start(script_of(harness), cuts=1)

    ended = await gateway.run(harness, tmp_path)

    assert (ended.how, ended.exit_code) == ("exited", 0), ended.last_words
    assert gateway.cuts == 0
    require_exact_rows(gateway.trajectory, gateway.engine)
    if name == "qwen-code":
        # It asks the policy to go on from what has arrived, which the policy has not said so.
        assert gateway.branches == ["rewritten"]
        return
    # Nothing was sampled again.
    assert len(gateway.engine.samples) == (3 if name == "opencode" else 2)
    if name == "opencode":
        # If nothing of the answer had arrived, it leaves an empty one in its history, which the policy has not given.
        assert [reason for reason in gateway.branches if reason != "rewritten"] in TITLES
    else:
        assert gateway.branches == []


async def test_a_sub_agent_of_claude_code_is_a_branch(tmp_path: Path, start: Callable[..., Gateway]):
    harness = installed("claude-code")

    def script(prompt: str) -> str:
        if "look-for-it" not in prompt:
            task = {"description": "Look", "prompt": "look-for-it", "subagent_type": "general-purpose"}
            return written("Agent", task)
        return "It is 42." if "<tool_call>" not in prompt.replace(CORPUS[1], "") else "All is done."

    gateway = start(script)
    ended = await gateway.run(harness, tmp_path)

    assert (ended.how, ended.exit_code) == ("exited", 0), ended.last_words
    assert len(gateway.trajectory.rows()) >= 2
    assert gateway.branches
    require_exact_rows(gateway.trajectory, gateway.engine)


async def test_a_compaction_of_codex_is_a_branch(tmp_path: Path, start: Callable[..., Gateway]):
    harness = installed("codex")
    # Compacts once the first answer has told how long the conversation is.
    *before, prompt = harness.command
    small = replace(harness, command=(*before, "-c", "model_auto_compact_token_limit=1000", prompt))
    calls = iter([written("exec_command", {"cmd": ECHO})])

    gateway = start(lambda prompt: next(calls, "All is done."))
    ended = await gateway.run(small, tmp_path)

    assert (ended.how, ended.exit_code) == ("exited", 0), ended.last_words
    assert gateway.branches
    require_exact_rows(gateway.trajectory, gateway.engine)


def test_every_api_has_a_harness():
    assert {harness.api for harness in HARNESSES.values()} == {CHAT, RESPONSES, MESSAGES}
