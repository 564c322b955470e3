"""Settings of agents with tools change what they do: a loop that ignores one of them fails a test here."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import ray
from omegaconf import OmegaConf
from pydantic.alias_generators import to_snake
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from verl.workers.rollout.replica import TokenOutput

from support.http_tools import HttpTools
from turnmill.jobs import AgentTrainingJob
from turnmill.rollout.texts import text_decoder
from turnmill.rollout.tool_agent.observations import ObservationTokenizer
from turnmill.rollout.tool_agent.response import ResponseParser
from turnmill.rollout.tool_agent.worker import ToolLoopManager, ToolLoopWorker
from turnmill.testing.agent_loops import END, SAMPLING, TOKENIZER, ToolLoopHarness, tool_job
from turnmill.tool_server.call_result import CallResult
from turnmill.tool_server.observation_format import ObservationFormat
from turnmill.tool_server.settings import ServerSettings
from turnmill.tool_server.upstream import Upstream
from turnmill.training.agent_kinds import agent_kind

CALL, ANSWER = "<py>1+1</py>", f"answer:2{END}"
NOTHING = f"no idea{END}"

NewHarness = Callable[..., ToolLoopHarness]


@pytest.fixture
async def server() -> AsyncIterator[HttpTools]:
    async with HttpTools(lambda call: "[2]") as tools:
        yield tools


@pytest.fixture
async def new_harness(tmp_path: Path) -> AsyncIterator[NewHarness]:
    made: list[ToolLoopHarness] = []

    def make(script: Any, server: HttpTools, **agent: Any) -> ToolLoopHarness:
        made.append(ToolLoopHarness(tmp_path, script, tool_job(**agent), server.url))
        return made[-1]

    yield make
    for each in made:
        await each.loop.close()


def config_of(job: AgentTrainingJob) -> Any:
    return OmegaConf.create({"turnmill": {"job": job.model_dump_json(by_alias=True)}})


@pytest.mark.feature("verl-tool", "limit on concurrent trajectories")
@pytest.mark.parametrize(("limit", "shares"), [(5, [3, 2]), (1, [1]), (None, [None, None])])
def test_the_manager_limits_the_trajectories_of_its_workers_once(limit, shares, monkeypatch):
    class Worker:
        limit: int | None = None
        num_calls = 0

        def __init__(self) -> None:
            self.set_limit = SimpleNamespace(remote=self._set)

        def _set(self, limit: int) -> None:
            self.limit, self.num_calls = limit, self.num_calls + 1

    monkeypatch.setattr(ray, "get", lambda calls: calls)
    manager = object.__new__(ToolLoopManager)
    manager.config, manager.agent_loop_workers = (
        config_of(tool_job(maxConcurrentTrajectories=limit)),
        [Worker(), Worker()],
    )

    in_use = [manager._workers_in_use() for _ in range(2)][1]

    assert [worker.limit for worker in in_use] == shares
    assert all(worker.num_calls == (limit is not None) for worker in in_use)


async def test_calls_of_several_trajectories_are_in_flight_at_once(new_harness, server):
    server.may_answer.clear()
    # Calls that were given up would still be in flight at the server.
    harness = new_harness(lambda request: ANSWER if "[2]" in request.prompt else CALL, server, toolCallTimeout=60)

    played = asyncio.gather(*(harness.play(sample=sample) for sample in range(6)))
    async with asyncio.timeout(20):
        while server.in_flight < 6:  # noqa: ASYNC110 (the server has no event for it)
            await asyncio.sleep(0.01)
    server.may_answer.set()
    await played

    assert server.max_in_flight == 6


@pytest.mark.feature("verl-tool", "observations as turns of a chat")
@pytest.mark.parametrize("role", ["user", "system", "assistant"])
async def test_in_a_chat_observations_are_turns_of_the_configured_role(role, new_harness, server):
    harness = new_harness([f"look{END}", f"go{END}"], server, stopTokens=[], enableMtrl=True, mtrlRole=role)

    await harness.play()

    task = dict(harness.loop.sources.training.training(0).messages[0])
    messages = [task, {"role": "assistant", "content": "look"}, {"role": role, "content": "[2]"}]
    assert harness.prompts[1] == TOKENIZER.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)


@pytest.mark.feature("verl-tool", "log-probs of the rollout")
@pytest.mark.parametrize("wanted", [True, False])
async def test_rows_have_log_probs_if_the_job_wants_them(wanted, new_harness, server):
    harness = new_harness([CALL, ANSWER], server, logprobs=wanted)
    worker = object.__new__(ToolLoopWorker)
    worker.job, worker.tool_loop = harness.loop.job, harness.loop

    rows = await worker.play(SAMPLING, validate=False, index=0, session_id=0, global_steps=1)

    assert [row.response_logprobs is not None for row in rows] == [wanted]
    settings = agent_kind(worker.job.spec.agent).verl_settings(worker.job)
    assert settings["actor_rollout_ref.rollout.calculate_log_probs"] is wanted


@pytest.mark.feature("verl-tool", "void trajectories in the loss")
@pytest.mark.parametrize(("valid", "trained"), [(True, True), (False, False)])
async def test_a_trajectory_with_a_valid_action_is_not_void(valid, trained, new_harness, server):
    server.valid = valid
    harness = new_harness([CALL, NOTHING], server, maskVoidTraj=True)

    result = await harness.play()

    assert result.trained is trained


@pytest.mark.feature("verl-tool", "placeholders are not split")
@pytest.mark.parametrize("side", ["left", "right", "middle"])
def test_observations_keep_the_placeholders_of_the_model_together(side):
    processor = SimpleNamespace(image_token_id=TOKENIZER.convert_tokens_to_ids("#"))
    agent = tool_job(maxObsLength=4, truncateObsSide=side).spec.tool_agent

    spared = (
        ObservationTokenizer(TOKENIZER, agent, processor=processor).tokenize("a###b", valid=True, response_ids=()).ids
    )
    split = ObservationTokenizer(TOKENIZER, agent).tokenize("#####", valid=True, response_ids=()).ids

    assert TOKENIZER.decode(spared).count("#") in (0, 3)
    assert TOKENIZER.decode(split).count("#") == 4


@pytest.mark.feature("verl-tool", "completions in the format of the training")
@pytest.mark.parametrize("side", ["left", "right", "middle"])
@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("valid", [True, False])
async def test_observations_of_completions_are_those_of_the_training(side, chat, valid):
    def tokenizer_server(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        if request.url.path == "/detokenize":
            return httpx.Response(200, json={"prompt": TOKENIZER.decode(body["tokens"])})
        messages = body.get("messages")
        text = TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) if messages else ""
        ids = TOKENIZER.encode(text or body["prompt"], add_special_tokens=False)
        return httpx.Response(200, json={"tokens": ids})

    settings = {"maxObsLength": 90, "truncateObsSide": side, "enableMtrl": chat, "turnEndToken": "."}
    agent = tool_job(**settings).spec.tool_agent
    upstream = Upstream(
        "http://model/v1", model="m", api_key="", timeout_seconds=5, transport=httpx.MockTransport(tokenizer_server)
    )
    server = ServerSettings.model_validate({to_snake(name): value for name, value in settings.items()})
    text = "the observation of a tool" * 5

    trained = ObservationTokenizer(TOKENIZER, agent).tokenize(text, valid=valid, response_ids=()).ids
    completed = await ObservationFormat(server, upstream).after("", CallResult(text, done=False, valid=valid))

    assert completed == TOKENIZER.decode(trained)
    assert "truncated" in completed


@pytest.fixture(scope="module")
def merging_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, whose tokens a policy can sample in other pieces than it would encode."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<eos>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    bpe.train_from_iterator(["banana bandana"] * 10, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<eos>", pad_token="<eos>")
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    return tokenizer


@pytest.mark.feature("verl-tool", "retokenized responses")
@pytest.mark.parametrize("retokenizes", [True, False])
async def test_a_response_is_encoded_anew_if_the_job_says_so(retokenizes, new_harness, server, merging_tokenizer):
    pieces = [merging_tokenizer.convert_tokens_to_ids(letter) for letter in "banana"] + [merging_tokenizer.eos_token_id]
    whole = merging_tokenizer.encode("banana<eos>", add_special_tokens=False)
    assert len(whole) < len(pieces)
    harness = new_harness([], server, retokenization=retokenizes, maxResponseLength=64)
    loop = harness.loop
    loop.tokenizer, loop.decode = merging_tokenizer, text_decoder(merging_tokenizer)
    loop.response_parser = ResponseParser(
        merging_tokenizer,
        loop.agent,
        stop_tokens=loop.stop_tokens,
        observation_tokenizer=loop.observation_tokenizer,
    )
    loop.stop_token_ids = frozenset({merging_tokenizer.eos_token_id})

    async def generate(*_: object, **__: object) -> TokenOutput:
        return TokenOutput(
            token_ids=pieces,
            log_probs=[-0.5] * len(pieces),
            stop_reason="completed",
            extra_fields={"min_global_steps": 0, "max_global_steps": 0},
        )

    loop.generate = generate
    (row,) = (await harness.play()).rows

    assert list(row.response.ids) == (whole if retokenizes else pieces)
    assert len(row.response.mask) == len(row.response.ids)
