"""Environments of verifiers, unmodified, give an agent of type `harness` the rewards of verifiers' own runner."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from verl.workers.rollout.replica import TokenOutput

from support.gateway import bpe_tokenizer
from support.verifiers_environments import (
    SUBJECTS,
    Subject,
    call,
    create_loop,
    evaluate,
    is_installed,
    play,
)
from turnmill.core.errors import InferenceError
from turnmill.core.trajectory import EpisodeFailure
from turnmill.rollout.harness.episode import EpisodeResult
from turnmill.rollout.harness.loop import HarnessLoop
from turnmill.rollout.harness.program import kill_group
from turnmill.testing.agent_loops import SAMPLING
from turnmill.testing.policies import ScriptedPolicy

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_installed(), reason="`make harnesses` has not installed verifiers"),
]

Begin = Callable[..., HarnessLoop]


@pytest.fixture
async def begin(tmp_path: Path) -> AsyncIterator[Begin]:
    loops: list[HarnessLoop] = []

    def create(subject: Subject, options: dict[str, Any], **agent: Any) -> HarnessLoop:
        loops.append(create_loop(subject, tmp_path / f"run{len(loops)}", options, **agent))
        return loops[-1]

    yield create
    for loop in loops:
        await loop.close()


@pytest.mark.parametrize("name", SUBJECTS)
async def test_rewards_are_those_of_verifiers_own_runner(tmp_path: Path, name: str):
    own = evaluate(SUBJECTS[name], tmp_path)

    played = await play(SUBJECTS[name], tmp_path)

    assert [
        (each.summary.reward, each.summary.num_turns) if isinstance(each, EpisodeResult) else each for each in played
    ] == [(each.reward, each.num_turns) for each in own]


# ---- what goes wrong ----


async def fail(loop: HarnessLoop) -> EpisodeFailure:
    result = await loop.run(SAMPLING, index=0, session_id=0, global_steps=1)
    assert isinstance(result, EpisodeFailure), result
    return result


def options_of(subject: Subject) -> dict[str, Any]:
    return {"settings": subject.settings(""), "numTasks": subject.num_tasks}


async def test_an_engine_that_fails_and_an_environment_that_cannot_play_give_no_reward(begin: Begin):
    subject = replace(SUBJECTS["glossary"], answer=lambda messages: "")
    silent = begin(subject, options_of(subject))
    silent.client = SilentPolicy(bpe_tokenizer(), [])
    # Its runtime does not exist on this machine.
    containers = begin(subject, {"settings": {"agent": {"runtime": {"type": "docker"}}}})

    engine, environment = await fail(silent), await fail(containers)

    assert engine.cause == "inference"
    assert (environment.cause, environment.num_turns) == ("harness", 0)
    assert "docker" in environment.message.lower()


async def test_the_limits_of_the_job_hold(begin: Begin):
    counts = replace(SUBJECTS["counter-tool-v1"], answer=lambda messages: call("counter_bump"))
    played = [
        await begin(counts, options_of(counts), maxTurns=limit).run(SAMPLING, index=0, session_id=0, global_steps=1)
        for limit in (1, 3)
    ]
    slow = begin(SUBJECTS["echo-v1"], options_of(SUBJECTS["echo-v1"]), timeoutSeconds=2)
    slow.client = SilentPolicy(bpe_tokenizer(), [], wait=True)

    assert [
        (each.summary.stop_reason, each.summary.num_turns, each.summary.reward)
        for each in played
        if isinstance(each, EpisodeResult)
    ] == [("max_turns", 1, 0.0), ("max_turns", 3, 1.0)]
    late = await fail(slow)
    assert "took more than 2 s" in late.message


async def test_a_process_that_dies_fails_its_episodes_and_is_replaced(begin: Begin):
    subject = SUBJECTS["echo-v1"]
    loop = begin(subject, options_of(subject))
    first = await loop.run(SAMPLING, index=0, session_id=0, global_steps=1)
    kill_group(loop.verifiers._server._process.pid)

    during, after = [await loop.run(SAMPLING, index=0, session_id=number, global_steps=1) for number in (1, 2)]

    assert isinstance(first, EpisodeResult)
    # The end of a process may be seen before the episode begins.
    assert isinstance(during, EpisodeResult) or "verifiers broke off" in during.message
    assert isinstance(after, EpisodeResult)


class SilentPolicy(ScriptedPolicy):
    """A policy whose engine fails, or never answers."""

    def __init__(self, *arguments: Any, wait: bool = False) -> None:
        super().__init__(*arguments)
        self._wait = wait

    async def generate(self, *_: object, **__: object) -> TokenOutput:
        """Fail or wait."""
        if self._wait:
            await asyncio.sleep(60)
        raise InferenceError("the engine is gone")
