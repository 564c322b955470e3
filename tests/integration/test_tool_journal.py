import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import DictConfigWrap

from turnmill.jobs import AgentTrainingJob
from turnmill.observability.run_folder import RunFolder
from turnmill.rollout.tool_agent.journal import StoreJournal
from turnmill.rollout.tool_agent.loop import Failure, ToolLoop
from turnmill.rollout.tool_agent.rows import Outcome
from turnmill.testing.http_tools import HttpTools
from turnmill.testing.policies import Request, ScriptedPolicy, character_tokenizer
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.embedded import EmbeddedStore
from turnmill.trajectories.journal import RolloutJournal

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}
TOKENIZER = character_tokenizer()
END = TOKENIZER.eos_token
CONFIG = OmegaConf.create(
    {"actor_rollout_ref": {"rollout": {"prompt_length": 512}}, "data": {"apply_chat_template_kwargs": {}}}
)
JOB = AgentTrainingJob.model_validate(
    {
        "apiVersion": "turnmill.dev/v1alpha1",
        "kind": "AgentTrainingJob",
        "metadata": {"name": "tools"},
        "spec": {
            "model": {"warmStart": {}},
            "agent": {"type": "tool", "stopTokens": ["</py>"], "maxTurns": 3, "toolCallMaxRetries": 0},
            "environment": {"name": "arithmetic"},
            "algorithm": {"type": "grpo"},
            "training": {"steps": 1, "tasksPerStep": 4},
        },
    }
)


class Crash(BaseException):
    """The process is gone: nothing that handles errors gets to see it."""


def script(request: Request) -> str:
    turns = request.prompt.count("[")
    return f"<py>{turns}</py>" if turns < 3 else f"answer:2{END}"


class CrashingAt:
    """A policy whose process dies when it is asked for a turn."""

    def __init__(self, turn: int) -> None:
        self.turn = turn

    def __call__(self, request: Request) -> str:
        if request.prompt.count("[") == self.turn:
            raise Crash
        return script(request)


@pytest.fixture(scope="module")
def store():
    with EmbeddedStore() as store:
        yield store


@pytest.fixture
async def server() -> AsyncIterator[HttpTools]:
    async with HttpTools(lambda call: f"[{call['current_step']}]") as tools:
        yield tools


def attempt(store: EmbeddedStore, run_dir: Path, server: HttpTools, policy: Any) -> tuple[ToolLoop, ScriptedPolicy]:
    """An agent loop as a new process of the run would have it."""
    RunFolder(run_dir).create()
    scripted = ScriptedPolicy(TOKENIZER, policy)
    loop = ToolLoop(
        trainer_config=DictConfigWrap(CONFIG),
        server_manager=scripted,
        tokenizer=TOKENIZER,
        processor=None,
        hf_model_type="qwen2",
        dataset_cls=None,
        data_config=DictConfigWrap(CONFIG.data),
        job=JOB,
        run_dir=run_dir,
        tool_server_url=server.url,
        journal=StoreJournal(RolloutJournal.from_url(store.url, RunFolder(run_dir).run_name())),
    )
    return loop, scripted


async def play(loop: ToolLoop, *, step: int = 1) -> Outcome | Failure:
    return await loop.run(SAMPLING, index=0, session_id=0, global_steps=step, validate=False)


async def dies(loop: ToolLoop, *, step: int = 1) -> None:
    with pytest.raises(Crash):
        await play(loop, step=step)
    # A process that is gone releases nothing.
    for task in list(loop._closing):
        task.cancel()
    await asyncio.gather(*loop._closing, return_exceptions=True)
    await loop.close()


@pytest.mark.parametrize("turn", [1, 2, 3])
async def test_a_trajectory_carries_on_from_its_last_turn_in_another_process(store, server, tmp_path, turn):
    undisturbed, policy = attempt(store, tmp_path / "undisturbed", server, script)
    wanted = await play(undisturbed)
    calls = [call["action"] for call in server.calls]
    server.calls.clear()

    first, _ = attempt(store, tmp_path / "run", server, CrashingAt(turn))
    await dies(first)
    second, policy = attempt(store, tmp_path / "run", server, script)
    outcome = await play(second)

    assert outcome.rows == wanted.rows
    assert (outcome.stop_reason, outcome.detail, outcome.num_turns) == ("completed", wanted.detail, 4)
    assert len(policy.requests) == 4 - turn
    assert [call["action"] for call in server.calls] == calls
    assert outcome.figures["turns_carried_on"] == turn
    await undisturbed.close()
    await second.close()


async def test_a_trajectory_that_had_ended_is_not_played_again(store, server, tmp_path):
    first, _ = attempt(store, tmp_path, server, script)
    wanted = await play(first)
    await first.close()

    second, policy = attempt(store, tmp_path, server, script)
    outcome = await play(second)

    assert (outcome.rows, outcome.stop_reason, outcome.detail) == (wanted.rows, wanted.stop_reason, wanted.detail)
    assert policy.requests == []
    await second.close()


async def test_steps_after_the_first_of_an_attempt_begin_from_the_prompt(store, server, tmp_path):
    first, _ = attempt(store, tmp_path, server, CrashingAt(2))
    await dies(first, step=2)
    second, policy = attempt(store, tmp_path, server, script)

    await play(second, step=1)
    outcome = await play(second, step=2)

    assert outcome.figures["turns_carried_on"] == 0
    assert len(policy.requests) == 8
    await second.close()


async def test_what_is_in_flight_can_be_read_from_the_store(store, server, tmp_path):
    first, _ = attempt(store, tmp_path, server, CrashingAt(2))
    await dies(first)

    journal = RolloutJournal.from_url(store.url, RunFolder(tmp_path).run_name())
    (rollout,) = await journal.live(deadline=deadline_in(5))

    assert [turn.observation for turn in rollout.turns] == ["[0]", "[1]"]
    assert rollout.turns[0].log_probs == (-0.5,) * len(rollout.turns[0].response_ids)
    await journal.close()


async def test_a_process_that_was_overtaken_writes_no_more(store, server, tmp_path):
    taken_over: list[ToolLoop] = []

    async def overtake() -> None:
        loop, _ = attempt(store, tmp_path, server, script)
        taken_over.append(loop)
        await play(loop)

    class Slow(ScriptedPolicy):
        async def generate(self, *args: Any, **kwargs: Any) -> Any:
            if len(self.requests) == 1:
                await overtake()
            return await super().generate(*args, **kwargs)

    loop, _ = attempt(store, tmp_path, server, script)
    loop.server_manager = Slow(TOKENIZER, script)

    failure = await play(loop)

    assert isinstance(failure, Failure)
    assert "is played elsewhere" in failure.message
    await loop.close()
    await taken_over[0].close()


async def test_a_store_that_is_gone_costs_what_would_have_been_kept_and_nothing_else(server, tmp_path, monkeypatch):
    monkeypatch.setattr("turnmill.rollout.tool_agent.journal.STORE_SECONDS", 0.3)
    with EmbeddedStore() as gone:
        loop, _ = attempt(gone, tmp_path, server, script)

    outcome = await play(loop)

    assert outcome.stop_reason == "completed"
    assert loop.journal.num_not_kept > 0
    await loop.close()
