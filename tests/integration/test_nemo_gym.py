"""Rows of NeMo Gym, played by its agents' loops with a resources server over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from support.gateway import bpe_tokenizer
from turnmill.core.ports import free_port
from turnmill.core.trajectory import EpisodeFailure
from turnmill.gateway.server import HttpServer
from turnmill.observability.run_folder import RunFolder
from turnmill.rollout.harness.episode import EpisodeResult
from turnmill.rollout.harness.loop import HarnessLoop
from turnmill.testing.agent_loops import SAMPLING, job_of
from turnmill.testing.policies import Script, ScriptedPolicy

END = "<|im_end|>"
TOOLS = [{"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": True}]
ROW = {
    "id": 7,
    "wanted": 5,
    "responses_create_params": {
        "input": [{"role": "developer", "content": "Add."}, {"role": "user", "content": "Add 2 and 3."}],
        "tools": TOOLS,
        "temperature": None,
    },
}


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class CountingServer:
    """A resources server: sessions with a sum, which the tool `add` changes and `/verify` compares."""

    def __init__(self) -> None:
        self.bodies: dict[str, list[Any]] = {}
        self.sums: dict[str, int] = {}
        self.status: dict[str, int] = {}
        """Statuses of paths that fail."""

        self.hangs: set[str] = set()
        self.reward: object = None
        routes = [Route("/{path:path}", self._answer, methods=["POST"])]
        self.server = HttpServer(Starlette(routes=routes))

    async def _answer(self, request: Request) -> Response:
        path, body = request.path_params["path"], await request.json()
        self.bodies.setdefault(path, []).append(body)
        if path in self.hangs:
            await asyncio.sleep(60)
        session = request.cookies.get("session") or f"s{len(self.sums)}"
        self.sums.setdefault(session, 0)
        if path in self.status:
            return PlainTextResponse("it broke", self.status[path])
        response = JSONResponse(self._of(path, body, session))
        response.set_cookie("session", session)
        return response

    def _of(self, path: str, body: Any, session: str) -> Any:
        if path == "add":
            self.sums[session] += body["number"]
            return {"sum": self.sums[session]}
        if path == "verify":
            reward = float(self.sums[session] == body["wanted"]) if self.reward is None else self.reward
            return {**body, "reward": reward, "sum": self.sums[session], "note": "seen"}
        if path == "reset":
            return {"observation": "Begin.", "info": {}}
        if path == "step":
            self.sums[session] += 1
            last = self.sums[session] == 3
            outputs = [{"call_id": item["call_id"], "output": "moved"} for item in body["response"]["output"]
                       if item["type"] == "function_call"]  # fmt: skip
            return {"observation": None if last else f"Step {self.sums[session]}.", "reward": 0.5, "terminated": last,
                    "truncated": False, "info": {"tool_outputs": outputs}}  # fmt: skip
        return {}


Begin = Callable[..., HarnessLoop]


@pytest.fixture
async def resources() -> AsyncIterator[CountingServer]:
    server = CountingServer()
    server.server.start()
    yield server
    await server.server.close()


@pytest.fixture
async def begin(tmp_path: Path, resources: CountingServer) -> AsyncIterator[Begin]:
    loops: list[HarnessLoop] = []

    def create(
        script: Script, *, function: str = "simple_agent", url: str | None = None, row: object = ROW, **options: object
    ) -> HarnessLoop:
        (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
        agent = {name: options.pop(name) for name in ("maxTurns", "maxPromptLength", "maxResponseLength")
                 if name in options}  # fmt: skip
        settings = {"type": "harness", "entryPoint": f"turnmill.nemo_gym:{function}", "reward": "program"} | agent
        given = {"path": str(tmp_path / "rows.jsonl"), "url": url or resources.server.url} | options
        environment = {"name": "turnmill.nemo_gym.rows:Rows", "options": given}
        run_dir = tmp_path / f"run{len(loops)}"
        RunFolder(run_dir).create()
        loops.append(
            HarnessLoop(
                server_manager=ScriptedPolicy(bpe_tokenizer(), script),
                tokenizer=bpe_tokenizer(),
                job=job_of(settings, environment, algorithm={"type": "grpo"}, tasksPerStep=1),
                run_dir=run_dir,
            )
        )
        return loops[-1]

    yield create
    for loop in loops:
        await loop.close()


async def play(loop: HarnessLoop) -> EpisodeResult | EpisodeFailure:
    return await loop.run(SAMPLING, index=0, session_id=0, global_steps=1)


async def played(loop: HarnessLoop) -> EpisodeResult:
    result = await play(loop)
    assert isinstance(result, EpisodeResult), result
    return result


async def failed(loop: HarnessLoop) -> EpisodeFailure:
    result = await play(loop)
    assert isinstance(result, EpisodeFailure), result
    return result


def outputs(resources: CountingServer) -> list[str]:
    """Return what the tools answered, as it is verified."""
    (verified,) = resources.bodies["verify"]
    return [item["output"] for item in verified["response"]["output"] if item["type"] == "function_call_output"]


async def test_the_server_verifies_the_row_with_all_that_the_policy_and_the_tools_wrote(
    begin: Begin, resources: CountingServer
):
    loop = begin(["Let me see.\n" + call("add", number=2) + "\n" + call("add", number=3) + END, f"It is 5.{END}"])

    result = await played(loop)

    assert (result.summary.reward, result.summary.num_turns, len(result.rows)) == (1.0, 2, 1)
    assert resources.bodies["seed_session"] == [ROW]
    assert outputs(resources) == ['{"sum":2}', '{"sum":5}']
    (verified,) = resources.bodies["verify"]
    response = verified.pop("response")
    assert verified == ROW
    assert [item["type"] for item in response["output"]] == [
        "message", "function_call", "function_call", "function_call_output", "function_call_output", "message",
    ]  # fmt: skip
    assert response["usage"]["output_tokens"] == sum(sum(row.response.mask) for row in result.rows)
    assert result.summary.metrics["result_sum"] == 5.0
    assert "result_id" not in result.summary.metrics


async def test_errors_of_a_tool_are_shown_to_the_policy(begin: Begin, resources: CountingServer):
    resources.status = {"broken": 500, "unknown": 404}
    loop = begin([call("broken", x=1) + "\n" + call("unknown") + END, f"I give up.{END}"])

    result = await played(loop)

    assert result.summary.reward == 0.0
    assert outputs(resources) == ["it broke", "it broke"]


@pytest.mark.parametrize(
    ("path", "status"), [("seed_session", 500), ("seed_session", 422), ("add", 503), ("verify", 500), ("verify", 404)]
)
async def test_a_server_that_fails_is_a_failed_trajectory_and_no_reward(
    begin: Begin, resources: CountingServer, path: str, status: int
):
    resources.status = {path: status}

    failure = await failed(begin([call("add", number=5) + END, f"It is 5.{END}"]))

    assert failure.cause == "harness"
    assert f"{resources.server.url}/{path} answered {status}: it broke" in failure.message


@pytest.mark.parametrize("path", ["seed_session", "add", "verify"])
async def test_a_server_that_hangs_is_a_failed_trajectory(begin: Begin, resources: CountingServer, path: str):
    resources.hangs = {path}

    failure = await failed(begin([call("add", number=5) + END, f"It is 5.{END}"], timeoutSeconds=0.5))

    assert f"{resources.server.url}/{path} did not answer: TimeoutError" in failure.message


async def test_a_server_that_does_not_listen_is_a_failed_trajectory(begin: Begin):
    url = f"http://127.0.0.1:{free_port()}"

    failure = await failed(begin([f"It is 5.{END}"], url=url, timeoutSeconds=0.5))

    assert f"environment.options.url: {url}/seed_session did not answer: ConnectionRefusedError" in failure.message


@pytest.mark.parametrize("reward", ["1.0", []])
async def test_a_reward_that_is_no_number_is_a_failed_trajectory(
    begin: Begin, resources: CountingServer, reward: object
):
    resources.reward = reward

    assert "gave no number as reward" in (await failed(begin([f"It is 5.{END}"]))).message


@pytest.mark.parametrize("limit", [{"maxSteps": 2}, {"maxTurns": 2}, {"maxSteps": 3, "maxTurns": 2}])
async def test_a_policy_that_goes_on_is_verified_after_the_last_step(
    begin: Begin, resources: CountingServer, limit: dict[str, int]
):
    result = await played(begin(lambda _: call("add", number=1) + END, **limit, row=ROW | {"wanted": 2}))

    assert (result.summary.reward, result.summary.stop_reason, result.summary.num_turns) == (1.0, "completed", 2)


async def test_a_full_context_ends_the_conversation_which_is_verified(begin: Begin, resources: CountingServer):
    limits = {"maxPromptLength": 200, "maxResponseLength": 100}
    loop = begin(lambda _: call("add", number=5) + END, **limits)

    result = await played(loop)

    (verified,) = resources.bodies["verify"]
    assert result.summary.stop_reason == "completed"
    assert verified["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_a_gymnasium_agent_adds_the_rewards_of_its_steps(begin: Begin, resources: CountingServer):
    loop = begin([f"left{END}", call("add", number=5) + END, f"right{END}"], function="gymnasium_agent")

    result = await played(loop)

    assert (result.summary.reward, result.summary.num_turns) == (1.5, 3)
    assert resources.bodies["reset"] == [ROW]
    prompt = loop.client.requests[-1].prompt  # type: ignore[attr-defined]
    assert "Begin.<|im_end|>" in prompt
    assert "Step 1.<|im_end|>" in prompt
    assert "<tool_response>\nmoved\n</tool_response>" in prompt
    assert prompt.endswith("<|im_start|>user\nStep 2.<|im_end|>\n<|im_start|>assistant\n")
