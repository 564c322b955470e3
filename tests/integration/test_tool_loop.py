import asyncio
import itertools
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import date
from typing import Any

import pyarrow
import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import RawTestServer
from pyarrow import parquet

from support.cancelled_calls import cancel_during_call
from support.http_tools import HttpTools
from support.loop_iterations import LoopIterations
from turnmill.core.errors import SettingsError, ToolCallError, ToolCallTimeoutError
from turnmill.core.loop_time import LoopTime
from turnmill.core.observations import INVALID_ACTION_NOTICE
from turnmill.core.ports import free_port
from turnmill.core.trajectory import EpisodeFailure
from turnmill.jobs.trajectory_algorithms import Grpo
from turnmill.rollout.generation import RESPONSES, STARTS
from turnmill.rollout.token_integrity import count_unsampled_tokens
from turnmill.rollout.tool_agent import client
from turnmill.rollout.tool_agent.client import ToolRequest, ToolServerClient, parse_urls
from turnmill.rollout.tool_agent.rows import EpisodeResult, verl_rows
from turnmill.testing.agent_loops import END, TOKENIZER, ToolLoopHarness, tool_job
from turnmill.testing.policies import LOG_PROB
from turnmill.training.advantages.rows import Rows
from turnmill.training.algorithms import trajectory_algorithm_of

CALL, ANSWER = "<py>1+1</py>", f"answer:2{END}"
SHORT = {"timeout_seconds": 1.5, "outage_seconds": 1.5, "max_retries": 0, "max_connections": 1}


@pytest.fixture
async def new_harness(tmp_path) -> AsyncIterator[Callable[..., ToolLoopHarness]]:
    made: list[ToolLoopHarness] = []

    def make(
        script: Any, server: HttpTools | str | None, environment: dict[str, Any] | None = None, *, journal: Any = None,
        **agent: Any,
    ) -> ToolLoopHarness:  # fmt: skip
        url = server.url if isinstance(server, HttpTools) else server
        made.append(ToolLoopHarness(tmp_path, script, tool_job(environment, **agent), url, journal=journal))
        return made[-1]

    yield make
    for each in made:
        await each.loop.close()


@pytest.fixture
async def server() -> AsyncIterator[HttpTools]:
    async with HttpTools(lambda call: "[2]") as tools:
        yield tools


def text_of(result: EpisodeResult) -> str:
    return "".join(TOKENIZER.decode(row.response.ids) for row in result.rows)


def trained_text(result: EpisodeResult) -> str:
    """Return the text of the tokens in the response mask."""
    row = verl_rows(result, log_probs=True)[0]
    return TOKENIZER.decode([t for t, mask in zip(row.response_ids, row.response_mask, strict=True) if mask])


async def test_a_response_with_a_stop_token_is_a_call_and_its_observation_follows(new_harness, server):
    harness = new_harness([CALL, ANSWER], server)

    result = await harness.play()

    assert text_of(result) == f"{CALL}[2]{ANSWER}"
    assert trained_text(result) == CALL + ANSWER
    assert [call["action"] for call in server.calls] == [CALL]
    assert (result.summary.stop_reason, result.detail) == ("completed", "model_chose_to_finish")


async def test_a_response_is_cut_after_its_stop_token_if_the_engine_generated_more(new_harness, server):
    harness = new_harness([f"{CALL} and <py>2", ANSWER], server)

    result = await harness.play()

    assert text_of(result) == f"{CALL}[2]{ANSWER}"
    assert [call["action"] for call in server.calls] == [CALL]
    assert [len(turn.log_probs or ()) for turn in harness.logged()] == [
        len(TOKENIZER.encode(response, add_special_tokens=False)) for response in (CALL, ANSWER)
    ]


@pytest.mark.feature("verl-tool", "contexts that are exact to the token")
@pytest.mark.feature("verl-tool", "log-probs of the rollout")
async def test_the_recorded_tokens_are_those_that_the_policy_read(new_harness, server):
    harness = new_harness([CALL, ANSWER], server)

    result = await harness.play()

    (row,) = result.rows
    first, second = harness.policy.requests
    num_response = len(TOKENIZER.encode(CALL, add_special_tokens=False))
    num_observed = len("[2]")
    assert first.prompt_ids == row.prompt_ids
    assert second.prompt_ids == row.prompt_ids + row.response.ids[: num_response + num_observed]
    assert row.response.log_probs == (LOG_PROB,) * num_response + (0.0,) * num_observed + (LOG_PROB,) * len(
        TOKENIZER.encode(ANSWER, add_special_tokens=False)
    )


def num_unsampled_tokens(result: EpisodeResult) -> int:
    """Return the number of trained tokens that the monitor does not find among the sampled ones."""
    rows = verl_rows(result, log_probs=True)
    return count_unsampled_tokens(
        ((row.response_ids, row.response_mask) for row in rows), result.summary.sampled_tokens
    )


@pytest.mark.feature("verl-tool", "contexts that are exact to the token")
@pytest.mark.parametrize(
    "agent",
    [{}, {"minTurns": 2}, {"callToolFirst": True}, {"truncateResponseSide": "right", "maxResponseLength": 20},
     {"rollingWithPrompt": True, "maxTurns": 5, "maxResponseLength": 30}, {"maskOverlongLoss": True}],
)  # fmt: skip
async def test_the_monitor_finds_every_trained_token_among_the_sampled_ones(new_harness, server, agent):
    result = await new_harness([CALL, CALL, CALL, ANSWER, ANSWER, ANSWER, ANSWER], server, **agent).play()

    assert num_unsampled_tokens(result) == 0


async def test_the_monitor_counts_trained_tokens_that_were_not_sampled(new_harness, server):
    result = await new_harness([CALL, ANSWER], server, maskObservations=False).play()

    assert num_unsampled_tokens(result) == len(result.rows[0].response)


async def test_a_trajectory_reports_the_time_of_generation_tools_and_loop(new_harness):
    def slowly(call: dict[str, Any]) -> str:
        time.sleep(0.05)
        return "[2]"

    async with HttpTools(slowly) as server:
        result = await new_harness([CALL, ANSWER], server).play()

    assert set(result.summary.seconds) == {"generation", "tools", "loop"}
    assert result.summary.seconds["tools"] >= 0.05
    assert all(seconds >= 0 for seconds in result.summary.seconds.values())


@pytest.mark.feature("verl-tool", "an agent that is switched off")
@pytest.mark.parametrize("agent", [{"enableAgent": False}, {"maxTurns": 0}])
async def test_a_disabled_agent_has_one_response_and_no_call(new_harness, server, agent):
    harness = new_harness([CALL], server, **agent)

    result = await harness.play()

    assert (result.summary.num_turns, len(server.calls)) == (1, 0)
    assert len(harness.policy.requests) == 1


@pytest.mark.feature("verl-tool", "an agent that is switched off")
async def test_a_disabled_agent_sends_no_request_to_the_tool_server(new_harness, server):
    harness = new_harness([CALL], server, enableAgent=False)

    result = await harness.play()
    await harness.loop.close()

    assert server.bodies == []
    assert result.detail.startswith("no_tool-")
    assert "stop" not in harness.policy.requests[0].sampling_params


@pytest.mark.feature("verl-tool", "budget of turns")
@pytest.mark.parametrize("turns", [1, 3])
async def test_a_trajectory_has_max_turns_calls_and_one_more_response(new_harness, server, turns):
    harness = new_harness(lambda _: CALL, server, maxTurns=turns)

    result = await harness.play()

    assert (len(server.calls), result.summary.num_turns) == (turns, turns + 1)
    assert (result.summary.stop_reason, result.detail) == ("max_turns", "max_turns_reached")


@pytest.mark.feature("verl-tool", "budgets of validations")
async def test_a_validation_has_separate_limits(new_harness, server):
    harness = new_harness(lambda _: CALL, server, maxTurns=1, valMaxTurns=2, valMaxResponseLength=200)

    result = await harness.play(validate=True)

    assert len(server.calls) == 2
    assert harness.policy.requests[0].sampling_params["max_tokens"] == 200
    assert result.summary.num_turns == 3


@pytest.mark.feature("verl-tool", "several samples per validation task")
@pytest.mark.parametrize(("samples", "validate", "vote"), [(2, True, "2"), (2, False, None), (1, True, None)])
async def test_a_trajectory_has_a_vote_in_a_validation_with_several_samples(tmp_path, server, samples, validate, vote):
    job = tool_job()
    validation = job.spec.training.validation.model_copy(update={"samples": samples})
    training = job.spec.training.model_copy(update={"validation": validation})
    job = job.model_copy(update={"spec": job.spec.model_copy(update={"training": training})})
    harness = ToolLoopHarness(tmp_path, [ANSWER], job, server.url)

    result = await harness.play(validate=validate)
    await harness.loop.close()

    assert result.summary.prediction == vote


@pytest.mark.feature("verl-tool", "forced actions")
async def test_the_first_min_turns_responses_are_forced_to_be_actions(new_harness, server):
    harness = new_harness([f"hm{END}", ANSWER], server, minTurns=1)

    result = await harness.play()

    assert [call["action"] for call in server.calls] == ["hm</py>"]
    assert text_of(result) == f"hm</py>[2]{ANSWER}"
    # The policy did not sample the stop token.
    assert trained_text(result) == f"hm{ANSWER}"


@pytest.mark.feature("verl-tool", "stop tokens from a file")
async def test_stop_tokens_can_be_read_from_a_file(new_harness, server, tmp_path):
    file = tmp_path / "stop.txt"
    file.write_text(" </sql> ,</py>\n")
    harness = new_harness([CALL, ANSWER], server, stopTokens=[], actionStopTokens=str(file))

    await harness.play()

    assert harness.policy.requests[0].sampling_params["stop"] == ["</sql>", "</py>"]
    assert harness.policy.requests[0].sampling_params["include_stop_str_in_output"] is True
    assert [call["action"] for call in server.calls] == [CALL]


@pytest.mark.feature("verl-tool", "stop tokens from a file")
def test_a_missing_file_of_stop_tokens_is_an_error_at_the_start(new_harness):
    with pytest.raises(SettingsError, match="actionStopTokens: '/nowhere' cannot be read"):
        new_harness([], "http://127.0.0.1:1", stopTokens=[], actionStopTokens="/nowhere")


@pytest.mark.feature("verl-tool", "every response of a chat is an action")
async def test_in_a_chat_without_stop_tokens_every_response_is_an_action(new_harness, server):
    harness = new_harness([f"look{END}", f"go{END}", f"stop{END}"], server, stopTokens=[], enableMtrl=True, maxTurns=2)

    await harness.play()

    assert [call["action"] for call in server.calls] == ["look", "go"]


@pytest.mark.feature("verl-tool", "observations as turns of a chat")
async def test_in_a_chat_observations_are_formatted_as_turns_of_the_template(new_harness, server):
    harness = new_harness([f"look{END}", f"go{END}"], server, stopTokens=[], enableMtrl=True)

    await harness.play()

    task = dict(harness.loop.sources.training.training(0).messages[0])
    messages = [task, {"role": "assistant", "content": "look"}, {"role": "user", "content": "[2]"}]
    rendered = TOKENIZER.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert harness.prompts[1] == rendered


async def test_in_a_chat_an_unfinished_response_is_closed_before_the_observation(new_harness, server):
    harness = new_harness([CALL, ANSWER], server, enableMtrl=True)

    result = await harness.play()

    assert text_of(result) == f"{CALL}{END}<usr>[2]{END}<ast>{ANSWER}"
    assert trained_text(result) == CALL + ANSWER


@pytest.mark.feature("verl-tool", "observations as turns of a chat")
async def test_in_a_chat_the_format_of_observations_can_be_set(new_harness, server):
    harness = new_harness([CALL, ANSWER], server, enableMtrl=True, mtrlSep="(obs: {obs})", turnEndToken="|")

    assert text_of(await harness.play()) == f"{CALL}|(obs: [2]){ANSWER}"


def test_tasks_with_data_that_is_not_json_are_an_error_at_the_start(new_harness, tmp_path):
    path = tmp_path / "tasks.parquet"
    rows = [{"prompt": "a", "extra_info": {"day": date(2026, 1, 2)}}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    environment = {"name": "dataset", "options": {"path": str(path)}}

    with pytest.raises(SettingsError, match="extra_info is sent with every tool call"):
        new_harness([], "http://127.0.0.1:1", environment)
    new_harness([], None, environment, enableAgent=False)


def test_a_format_without_the_observation_is_refused(new_harness):
    with pytest.raises(SettingsError, match="mtrlSep"):
        new_harness([], "http://127.0.0.1:1", enableMtrl=True, mtrlSep="obs")


@pytest.mark.feature("verl-tool", "notice of an invalid action")
async def test_in_a_chat_an_invalid_action_has_a_notice_in_its_observation(new_harness, server):
    server.valid = False
    harness = new_harness([CALL, ANSWER], server, enableMtrl=True)

    await harness.play()

    assert f"<usr>{INVALID_ACTION_NOTICE}[2]" in harness.prompts[1]


@pytest.mark.feature("verl-tool", "notice of an invalid action")
@pytest.mark.parametrize("observation", ["", {"obs": "", "invalid_reason": "No valid tool found for action"}])
async def test_nothing_is_appended_to_an_invalid_action_that_ends_the_trajectory(new_harness, observation):
    async with HttpTools(lambda call: observation, done=True, valid=False) as server:
        harness = new_harness([ANSWER], server, enableMtrl=True, stopTokens=[], minTurns=3, maxTurns=3)

        result = await harness.play()

    assert text_of(result) == ANSWER
    assert (result.summary.stop_reason, result.detail) == ("completed", "tool_signaled_done")


async def test_the_last_words_of_a_tool_that_ends_the_trajectory_are_appended(new_harness):
    async with HttpTools(lambda call: "bye", done=True, valid=False) as server:
        harness = new_harness([CALL], server, enableMtrl=True)

        assert f"{INVALID_ACTION_NOTICE}bye" in text_of(await harness.play())


@pytest.mark.feature("verl-tool", "observations that are too long")
@pytest.mark.parametrize(
    ("side", "kept"),
    [("left", "(truncated)...6789"), ("right", "0123...(truncated)"), ("middle", "01...(truncated)...89")],
)
async def test_a_long_observation_is_truncated_on_the_configured_side(new_harness, side, kept):
    async with HttpTools(lambda call: "0123456789") as server:
        harness = new_harness([CALL, ANSWER], server, maxObsLength=4, truncateObsSide=side)

        assert text_of(await harness.play()) == CALL + kept + ANSWER


async def test_special_tokens_in_an_observation_are_text(new_harness):
    async with HttpTools(lambda call: f"a{END}b") as server:
        harness = new_harness([CALL, ANSWER], server)

        result = await harness.play()

    (row,) = result.rows
    observed = [t for t, mask in zip(row.response.ids, row.response.mask, strict=True) if not mask]
    assert TOKENIZER.eos_token_id not in observed


async def test_concurrent_tokenization_of_observations_does_not_change_prompts(new_harness):
    async with HttpTools(lambda call: f"a{END}b" * 20) as server:
        harness = new_harness(lambda r: ANSWER if "a<" in r.prompt else CALL, server, maxObsLength=400)

        results = await asyncio.gather(*(harness.play(sample=sample) for sample in range(200)))

    assert len({request.prompt for request in harness.policy.requests}) == 2
    assert len({result.rows[0].prompt_ids for result in results}) == 1


@pytest.mark.feature("verl-tool", "length of an action")
async def test_a_response_is_limited_by_the_action_length_and_the_remaining_response_length(new_harness, server):
    harness = new_harness([CALL, ANSWER], server, maxActionLength=20, maxResponseLength=30)

    await harness.play()

    first, second = (request.sampling_params["max_tokens"] for request in harness.policy.requests)
    assert (first, second) == (20, 30 - len(CALL) - len("[2]"))


@pytest.mark.feature("verl-tool", "length of a response")
async def test_a_full_context_ends_the_trajectory(new_harness):
    async with HttpTools(lambda call: "x" * 40) as server:
        harness = new_harness([CALL], server, maxResponseLength=30)

        result = await harness.play()

    assert (result.summary.stop_reason, result.detail) == ("max_tokens", "max_response_length_reached")
    assert text_of(result) == (CALL + "x" * 40)[:30]


@pytest.mark.feature("verl-tool", "side on which responses are cut")
async def test_the_last_tokens_are_kept_if_truncation_is_on_the_right(new_harness):
    async with HttpTools(lambda call: "x" * 40) as server:
        harness = new_harness([CALL], server, maxResponseLength=30, truncateResponseSide="right")

        result = await harness.play()

    (row,) = result.rows
    assert TOKENIZER.decode(row.response.ids) == (CALL + "x" * 40)[-30:]
    assert TOKENIZER.decode(row.prompt_ids).endswith((CALL + "x" * 40)[:-30])


@pytest.mark.feature("verl-tool", "length of the first prompt")
async def test_a_row_keeps_the_end_of_a_long_prompt_and_the_policy_reads_the_whole_prompt(new_harness, server):
    harness = new_harness([CALL, ANSWER], server, maxStartLength=3)

    result = await harness.play()

    assert len(harness.policy.requests[0].prompt_ids) > 3
    assert result.rows[0].prompt_ids == harness.policy.requests[0].prompt_ids[-3:]


@pytest.mark.feature("verl-tool", "a rolling window")
async def test_a_full_context_drops_its_oldest_turns_if_rolling_is_on(new_harness, server):
    calls = [f"<py>{n}</py>" for n in range(5)]
    harness = new_harness([*calls, ANSWER], server, rollingWithPrompt=True, maxTurns=5, maxResponseLength=30)

    result = await harness.play()

    assert len(server.calls) == 5
    assert len(result.rows) > 1
    prompt = harness.policy.requests[0].prompt
    assert all(request.prompt.startswith(prompt) for request in harness.policy.requests)
    assert "<py>0</py>" not in harness.policy.requests[-1].prompt
    # Every response is trained once, in exactly the context that the policy had read.
    rows = verl_rows(result, log_probs=True)
    trained = "".join(
        TOKENIZER.decode([t for t, mask in zip(row.response_ids, row.response_mask, strict=True) if mask])
        for row in rows
    )
    assert trained == "".join(calls) + ANSWER
    read = {request.prompt_ids for request in harness.policy.requests}
    assert all(row.prompt_ids in read for row in result.rows)
    assert {row.reward_score for row in rows} == {result.summary.reward}


@pytest.mark.feature("verl-tool", "a tool before the first turn")
async def test_a_tool_may_be_called_before_the_first_response(new_harness, server):
    harness = new_harness([ANSWER], server, callToolFirst=True)

    result = await harness.play()

    assert [call["action"] for call in server.calls] == [""]
    assert text_of(result) == f"[2]{ANSWER}"
    assert result.summary.metrics["valid_action"] == 1.0


@pytest.mark.feature("verl-tool", "further tokens that end a response")
async def test_additional_tokens_can_end_a_response(new_harness, server):
    harness = new_harness([CALL, ANSWER], server, additionalEosTokenIds=[7, 9])

    await harness.play()

    assert harness.policy.requests[0].sampling_params["stop_token_ids"] == [7, 9]


@pytest.mark.feature("verl-tool", "a last turn without stop tokens")
async def test_the_last_response_can_be_requested_without_stop_tokens(new_harness, server):
    harness = new_harness([CALL, CALL], server, forceFinishForLastTurn=True)

    await harness.play()

    first, last = (request.sampling_params for request in harness.policy.requests)
    assert "stop" in first
    assert "stop" not in last
    assert len(server.calls) == 1


@pytest.mark.feature("verl-tool", "observations in the loss")
async def test_observations_are_trained_only_if_they_are_not_masked(new_harness, server):
    harness = new_harness([CALL, ANSWER], server, maskObservations=False)

    assert trained_text(await harness.play()) == f"{CALL}[2]{ANSWER}"


@pytest.mark.feature("verl-tool", "unfinished trajectories in the loss")
async def test_unfinished_trajectories_can_be_left_out_of_the_loss(new_harness, server):
    harness = new_harness(lambda _: CALL, server, maskOverlongLoss=True)

    result = await harness.play()

    assert trained_text(result) == ""
    assert result.summary.metrics["no_loss_on_traj"] == 1.0


@pytest.mark.parametrize(
    ("agent", "response", "end"),
    [
        ({"enableAgent": False}, "0123456789", ("max_tokens", "no_tool-length")),
        ({"enableAgent": False}, f"012345678{END}", ("completed", "no_tool-stop")),
        (
            {"enableAgent": False, "additionalEosTokenIds": TOKENIZER.encode("9")},
            "0123456789",
            ("completed", "no_tool-stop"),
        ),
        ({}, "0123456789", ("max_tokens", "finish_reason_length")),
        ({}, f"012345678{END}", ("completed", "model_chose_to_finish")),
    ],
)
async def test_a_response_at_the_length_limit_is_cut_off_unless_it_ends(new_harness, server, agent, response, end):
    harness = new_harness([response], server, maxResponseLength=10, maskOverlongLoss=True, **agent)

    result = await harness.play()

    assert (result.summary.stop_reason, result.detail) == end
    assert trained_text(result) == (response if end[0] == "completed" else "")


@pytest.mark.feature("verl-tool", "void trajectories in the loss")
@pytest.mark.parametrize(("response", "masked"), [(f"no idea{END}", True), (f"\\boxed{{2}}{END}", False)])
async def test_void_trajectories_can_be_left_out_of_the_loss(new_harness, server, response, masked):
    harness = new_harness([response], server, maskVoidTraj=True)

    assert (trained_text(await harness.play()) == "") is masked


@pytest.mark.feature("verl-tool", "turn number in tool calls")
@pytest.mark.feature("verl-tool", "extra information of a task in tool calls")
async def test_a_tool_call_has_the_turn_number_and_the_extra_info_of_the_task(new_harness, server, tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"prompt": "1+1", "answer": "answer:2", "extra_info": {"db_id": "x"}}\n' * 3)
    environment = {"name": "dataset", "options": {"path": str(file), "validationTasks": 1}}
    harness = new_harness([CALL, CALL, ANSWER], server, environment, maxTurns=2)

    await harness.play()

    received = [
        {name: call[name] for name in ("db_id", "current_step", "max_turns", "turns_left")} for call in server.calls
    ]
    assert received == [
        {"db_id": "x", "current_step": 0, "max_turns": 2, "turns_left": 1},
        {"db_id": "x", "current_step": 1, "max_turns": 2, "turns_left": 0},
    ]


async def test_a_task_can_disable_tools(new_harness, server, tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"prompt": "1+1", "answer": "answer:2", "use_tool": false}\n' * 3)
    harness = new_harness([CALL], server, {"name": "dataset", "options": {"path": str(file), "validationTasks": 1}})

    await harness.play()

    assert server.calls == []


async def test_every_call_of_a_trajectory_has_its_own_call_id(new_harness, server):
    harness = new_harness([CALL, CALL, ANSWER], server, maxTurns=2)

    await harness.play()

    names = [(call["trajectory"], call["call_id"]) for call in server.calls]
    assert len(set(names)) == len(names) == 2
    assert len({trajectory for trajectory, _ in names}) == 1


async def test_a_call_after_an_empty_response_has_its_own_call_id(new_harness, server):
    harness = new_harness([END, END, ANSWER], server, minTurns=2, maxTurns=2)

    result = await harness.play()

    assert [(call["action"], call["call_id"]) for call in server.calls] == [("</py>", "turn-0"), ("</py>", "turn-1")]
    assert result.summary.num_turns == 3


@pytest.mark.feature("verl-tool", "control characters")
async def test_no_control_character_is_sent(new_harness, server):
    harness = new_harness([CALL, ANSWER], server)
    harness.loop.tools.urls = (server.url + "/get_observation",)

    from turnmill.rollout.tool_agent.client import ToolRequest

    await harness.loop.tools.call(ToolRequest("a", "x\x00\x1by\tz\n", {"k\x07": ["\x01v"]}))

    assert server.calls[0]["action"] == "xy\tz\n"
    assert server.calls[0]["k"] == ["v"]


@pytest.mark.feature("verl-tool", "release of a trajectory")
async def test_every_trajectory_is_released_once(new_harness, server):
    harness = new_harness(lambda r: CALL if "[2]" not in r.prompt else ANSWER, server)

    await asyncio.gather(*(harness.play(sample=sample) for sample in range(3)))
    await harness.loop.close()

    assert sorted(server.finished) == sorted({call["trajectory"] for call in server.calls})
    assert len(server.finished) == 3


async def test_a_cancelled_trajectory_without_a_journal_is_released(new_harness, server):
    harness = new_harness([CALL], server)
    await cancel_during_call(harness)

    assert len(server.finished) == 1


@pytest.mark.feature("verl-tool", "rewards of tools")
async def test_a_tool_can_end_a_trajectory_and_its_reward_is_logged(new_harness):
    async with HttpTools(lambda call: {"obs": "bye", "reward": 0.5, "metrics": {"lines": 3}}, done=True) as server:
        harness = new_harness([CALL], server, maxTurns=5)

        result = await harness.play()

    assert (result.summary.stop_reason, result.detail) == ("completed", "tool_signaled_done")
    assert result.summary.metrics["per_reward_from_tool"] == 0.5
    assert result.summary.metrics["tool_avg_lines"] == 3
    # The reward of a tool is logged only.
    assert result.summary.reward == 0.0


def dead_port() -> str:
    return f"http://127.0.0.1:{free_port()}"


@pytest.mark.feature("verl-tool", "retries of calls and error texts")
async def test_an_unreachable_server_fails_the_trajectory_and_its_error_is_in_no_context(new_harness):
    harness = new_harness([CALL, ANSWER], dead_port(), toolOutageTimeout=1.0)

    failure = await harness.play()

    assert isinstance(failure, EpisodeFailure)
    assert failure.cause == "tool_connection"
    *_, last = harness.logged()
    assert (last.stop_reason, last.failed_cause) == ("failed", "tool_connection")
    # The error is in no context: the policy received no further request.
    assert len(harness.policy.requests) == 1


async def test_calls_to_an_unreachable_server_are_retried_on_another_one(new_harness, server):
    harness = new_harness([CALL, ANSWER], f"{dead_port()},{server.url}/get_observation")

    results = [await harness.play(sample=sample) for sample in range(1)]

    assert [result.summary.stop_reason for result in results] == ["completed"]


async def test_a_call_to_a_server_that_hangs_is_retried_on_another_one(new_harness, server):
    async with HttpTools(lambda call: "[9]") as hanging:
        hanging.may_answer.clear()
        harness = new_harness(
            lambda r: ANSWER if "[" in r.prompt else CALL, f"{server.url},{hanging.url}", toolCallTimeout=4.0
        )

        # The first call goes to the second server.
        result = await harness.play()

    assert text_of(result) == f"{CALL}[2]{ANSWER}"
    # The retried call has the same call_id, so it takes effect once.
    assert hanging.calls[0]["call_id"] == "turn-0"


async def test_the_error_of_a_server_that_takes_no_call_says_why():
    silent = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    host, port = silent.sockets[0].getsockname()
    unheard = {f"http://{host}:{port}": "/health: TimeoutError$", dead_port(): "/health: Cannot connect to host"}
    settings = {"timeout_seconds": 60, "outage_seconds": 0.5, "max_retries": 0, "max_connections": 1}

    async with silent:
        for url, reason in unheard.items():
            async with ToolServerClient(parse_urls(url), **settings) as caller:
                with pytest.raises(ToolCallError, match=reason):
                    await caller.call(ToolRequest("t", CALL))


@pytest.mark.parametrize(
    ("answer", "cause", "tries"),
    [
        (web.Response(status=500, headers={"Retry-After": "0"}, text="broken"), "tool_server", 3),
        (web.Response(status=422, text="no"), "tool_refused", 1),
        (web.Response(status=409, text='{"detail": "", "cause": "poison_call"}'), "tool_poison", 1),
        (web.Response(status=409, text='{"detail": "", "cause": "lost_write"}'), "tool_lost_write", 1),
        (web.Response(text="{"), "tool_server", 3),
        ({"obs": 3}, "tool_server", 3),
        ({"obs": "", "error": "Tool processing failed: x", "tool_type": "py"}, "tool_raised", 1),
        (ConnectionError(), "tool_connection", 3),
    ],
)
async def test_failures_have_different_causes_and_numbers_of_tries(new_harness, answer, cause, tries):
    def new_answer(call: dict[str, Any]) -> Any:
        if isinstance(answer, web.Response):
            return web.Response(status=answer.status, headers=answer.headers, body=answer.body)
        return answer

    async with HttpTools(new_answer) as server:
        harness = new_harness([CALL], server, toolCallMaxRetries=2)

        failure = await harness.play()

    assert (failure.cause, len(server.calls)) == (cause, tries)


async def test_a_call_that_no_server_took_does_not_count_as_a_retry(new_harness):
    answers = iter([*(web.Response(status=503) for _ in range(3)), web.Response(status=500), "[2]"])
    async with HttpTools(lambda call: next(answers)) as server:
        harness = new_harness([CALL, ANSWER], server, toolCallMaxRetries=1)

        assert text_of(await harness.play()) == f"{CALL}[2]{ANSWER}"


@pytest.mark.feature("verl-tool", "servers of verl-tool")
@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (web.Response(status=500, text="Processing failed"), "tool_server"),
        (web.Response(status=502, text="upstream read error"), "tool_server"),
        (web.Response(text="{"), "tool_server"),
        (ConnectionError(), "tool_connection"),
    ],
)
async def test_a_call_that_a_server_without_call_ids_may_have_executed_is_not_repeated(new_harness, answer, cause):
    async with HttpTools(lambda call: answer) as server:
        server.call_ids = False
        harness = new_harness([CALL], server, toolCallMaxRetries=2)

        failure = await harness.play()

    assert (failure.cause, len(server.calls)) == (cause, 1)


@pytest.mark.feature("verl-tool", "servers of verl-tool")
async def test_a_call_that_a_server_without_call_ids_did_not_get_is_repeated(new_harness):
    answers = iter([web.Response(status=503), web.Response(status=429), "[2]"])
    async with HttpTools(lambda call: next(answers)) as server:
        server.call_ids = False
        harness = new_harness([CALL, ANSWER], f"{dead_port()},{server.url}", toolCallMaxRetries=8)

        assert text_of(await harness.play()) == f"{CALL}[2]{ANSWER}"


@pytest.mark.feature("verl-tool", "servers of verl-tool")
@pytest.mark.parametrize(("call_ids", "seconds"), [(False, 8.0), (True, 6.0)])
async def test_a_server_without_call_ids_has_the_whole_timeout(monkeypatch, call_ids, seconds):
    async with HttpTools(lambda call: "[2]") as server:
        server.call_ids = call_ids
        allowed = []
        post = ToolServerClient._post

        async def record(
            self: ToolServerClient, url: str, request: Any, left: LoopTime, seconds: float, *rest: Any, **more: Any
        ) -> Any:
            allowed.append(seconds)
            return await post(self, url, request, left, seconds, *rest, **more)

        monkeypatch.setattr(ToolServerClient, "_post", record)
        settings = {"timeout_seconds": 8.0, "outage_seconds": 8.0, "max_retries": 5, "max_connections": 1}
        async with ToolServerClient(parse_urls(server.url), **settings) as tools:
            await tools.call(ToolRequest("t", CALL))

    assert allowed == [pytest.approx(seconds, abs=0.9)]


async def test_each_call_names_the_version_that_the_last_one_made(new_harness):
    versions = iter(["7 turn-0", "", "9 turn-2"])

    def answer(call: dict[str, Any]) -> web.Response:
        body = {"observations": ["[2]"], "dones": [False], "valids": [True], "versions": [next(versions)]}
        return web.json_response(body)

    async with HttpTools(answer) as server:
        await new_harness([CALL, CALL, CALL, ANSWER], server, maxTurns=3).play()

    assert [call["after_version"] for call in server.calls] == ["", "7 turn-0", "7 turn-0"]


async def test_trajectories_that_begin_at_once_leave_the_event_loop_free(new_harness, server):
    """The loop gets to its timers between any two that begin, and after every few responses."""
    harness = new_harness(lambda request: ANSWER, server)
    iterations, begun, read = LoopIterations(), Counter[int](), Counter[int]()
    sources, parser = harness.loop.sources, harness.loop.response_parser

    def noted(function: Callable[..., Any], times: Counter[int]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            times[iterations.number] += 1
            return function(*arguments)

        return call

    together, generate = asyncio.Barrier(20), harness.policy.generate

    async def generate_together(*arguments: Any, **more: Any) -> Any:
        output = await generate(*arguments, **more)
        await together.wait()
        return output

    harness.policy.generate = generate_together
    sources.task = noted(sources.task, begun)
    parser.find_action = noted(parser.find_action, read)
    await asyncio.gather(*(harness.play(sample=sample) for sample in range(20)))

    assert (begun.total(), max(begun.values())) == (20, STARTS)
    assert (read.total(), max(read.values())) == (20, RESPONSES)


class LosingTools:
    """Answers calls as a tool server does whose store loses what it has recorded from some call on.

    It does as the third call comes, and so many times more as the second comes again.
    """

    def __init__(
        self, lost_from: int, observe: Callable[[int], str] = lambda executions: "[2]", *, again: float = 0
    ) -> None:
        self._lost_from, self._observe, self._again = lost_from, observe, again
        self._records: dict[str, tuple[str, str]] = {}
        self.executed: list[str] = []

    def __call__(self, call: dict[str, Any]) -> web.Response:
        if call["call_id"] == "turn-2" and self.executed[-1] == "turn-1" and self._lost_from < 2:
            for number in range(self._lost_from, 2):
                self._records.pop(f"turn-{number}")
            self._lost_from = 2
        elif call["call_id"] == "turn-1" and self.executed[-1] == "turn-0" and len(self.executed) > 2 and self._again:
            self._again -= 1
            self._records.clear()
        known = {version for _, version in self._records.values()}
        if call["call_id"] not in self._records:
            if call["after_version"] and call["after_version"] not in known:
                return web.Response(status=409, text='{"detail": "lost", "cause": "lost_write"}')
            self.executed.append(call["call_id"])
            observed = self._observe(self.executed.count(call["call_id"]))
            self._records[call["call_id"]] = observed, f"{len(self.executed)} {call['call_id']}"
        observed, version = self._records[call["call_id"]]
        body = {"observations": [observed], "dones": [False], "valids": [True], "versions": [version]}
        return web.json_response(body)


@pytest.mark.parametrize(("lost_from", "again"), [(1, ["turn-1"]), (0, ["turn-0", "turn-1"])])
async def test_calls_that_the_store_lost_are_made_again_with_their_ids(new_harness, lost_from, again):
    calls = [f"<py>{number}</py>" for number in range(3)]
    tools = LosingTools(lost_from)
    async with HttpTools(tools) as server:
        result = await new_harness([*calls, ANSWER], server, maxTurns=3).play()

    assert tools.executed == ["turn-0", "turn-1", *again, "turn-2"]
    assert text_of(result) == "".join(f"{call}[2]" for call in calls) + ANSWER
    for name in ("action", "current_step", "turns_left"):
        assert len({(call["call_id"], call[name]) for call in server.calls}) == 3
    assert len({call["trajectory"] for call in server.calls}) == 1


async def test_calls_that_are_lost_again_while_they_are_sent_again_are_sent_once_more(new_harness):
    tools = LosingTools(0, again=2)
    async with HttpTools(tools) as server:
        result = await new_harness([CALL, CALL, CALL, ANSWER], server, maxTurns=3).play()

    assert tools.executed == ["turn-0", "turn-1", "turn-0", "turn-0", "turn-0", "turn-1", "turn-2"]
    assert text_of(result) == f"{CALL}[2]" * 3 + ANSWER


async def test_a_store_that_loses_all_the_time_is_an_outage_with_its_limit(new_harness):
    tools = LosingTools(0, again=math.inf)
    async with HttpTools(tools) as server:
        failure = await new_harness([CALL, CALL, CALL, ANSWER], server, maxTurns=3, toolOutageTimeout=0.2).play()

    assert failure.cause == "tool_lost_write"
    assert tools.executed.count("turn-0") > 2


async def test_a_trajectory_fails_where_a_lost_call_observes_something_else(new_harness):
    tools = LosingTools(0, lambda executions: f"[{executions}]")
    async with HttpTools(tools) as server:
        failure = await new_harness([CALL, CALL, CALL, ANSWER], server, maxTurns=3).play()

    assert (failure.cause, tools.executed) == ("tool_lost_write", ["turn-0", "turn-1", "turn-0"])
    assert "'turn-0', sent again, got another observation" in failure.message


async def test_an_error_that_a_tool_reports_is_an_observation(new_harness):
    async with HttpTools(lambda call: {"obs": "[no such file]", "error": "ENOENT"}) as server:
        harness = new_harness([CALL, ANSWER], server)

        assert text_of(await harness.play()) == f"{CALL}[no such file]{ANSWER}"


@pytest.mark.feature("verl-tool", "retries of calls and error texts")
async def test_a_temporary_failure_does_not_change_the_trajectory(new_harness):
    answers = iter([web.Response(status=503), ConnectionError(), "[2]"])
    async with HttpTools(lambda call: next(answers)) as server:
        harness = new_harness([CALL, ANSWER], server)

        result = await harness.play()

    assert text_of(result) == f"{CALL}[2]{ANSWER}"
    assert len({call["call_id"] for call in server.calls}) == 1


async def test_a_call_does_not_wait_for_a_retry_after_its_timeout():
    answers = iter([web.Response(status=503, headers={"Retry-After": "61"}, text="full"), "[2]"])
    async with HttpTools(lambda call: next(answers)) as server:
        urls = parse_urls(server.url)
        async with ToolServerClient(
            urls, timeout_seconds=60, outage_seconds=60, max_retries=3, max_connections=1
        ) as caller:
            with pytest.raises(ToolCallError, match="full"):
                await caller.call(ToolRequest("t", CALL))

    assert (len(server.calls), caller.num_retries) == (1, 0)


async def outcome_of(
    answers: Iterator[Any], *, seconds: float = 0.3, outage_seconds: float = 60, max_retries: int = 0
) -> str:
    """Return a call's observation, or the cause and the message of its failure; an answer `!CAUSE` is 503 with that."""

    def answer(call: dict[str, Any]) -> Any:
        text = next(answers)
        if not isinstance(text, str) or not text.startswith("!"):
            return text
        return web.json_response({"detail": "", "cause": text[1:]}, status=503)

    async with HttpTools(answer) as server:
        limits = {"timeout_seconds": seconds, "outage_seconds": outage_seconds, "max_retries": max_retries}
        async with ToolServerClient(parse_urls(server.url), **limits, max_connections=1) as caller:
            try:
                return (await caller.call(ToolRequest("t", CALL))).text
            except ToolCallError as error:
                return f"{error.cause}: {error}"


@pytest.mark.parametrize("cause", ["store_unavailable", "queue", "stale_claim", "sandbox"])
async def test_an_outage_may_take_longer_than_a_call(cause):
    answers = itertools.chain([f"!{cause}"] * 4, ["[2]"])

    assert await outcome_of(answers) == "[2]"


async def test_an_outage_ends_a_call_by_its_own_limit():
    message = await outcome_of(itertools.repeat("!store_unavailable"), seconds=60, outage_seconds=0.3)

    assert message.startswith("tool_server: ")
    assert "store_unavailable" in message


async def test_a_server_at_work_is_asked_again_and_that_is_no_retry():
    answers = itertools.chain(["!call_in_progress"] * 3, ["[2]"])

    assert await outcome_of(answers, seconds=30) == "[2]"


async def test_a_server_at_work_for_longer_than_the_timeout_fails_the_call():
    assert (await outcome_of(itertools.repeat("!call_in_progress"))).startswith("tool_timeout: ")


async def test_a_call_whose_tool_was_ended_fails_at_once():
    assert (await outcome_of(iter(["!timeout"]), seconds=60)).startswith("tool_timeout: ")


async def test_a_broken_connection_is_a_retry_and_no_time_of_the_call():
    def answers() -> Iterator[Any]:
        for _ in range(3):
            time.sleep(0.2)
            yield ConnectionError()
        yield "[2]"

    assert await outcome_of(answers(), max_retries=3) == "[2]"


@pytest.mark.parametrize(
    ("health", "cause"),
    [
        ({"call_ids": True, "uptime_seconds": 60.0}, "tool_timeout"),
        # It has started only since: the call was lost with the one before it.
        ({"call_ids": True, "uptime_seconds": 0.0}, "tool_connection"),
        (None, "tool_connection"),
    ],
)
async def test_a_server_that_says_nothing_of_a_call_is_asked_for_its_health(monkeypatch, health, cause):
    monkeypatch.setattr(client, "SILENCE_SECONDS", 0.2)
    well, ended = [{"call_ids": True}], asyncio.Event()

    async def handle(request: web.BaseRequest) -> web.Response:
        if request.path == "/health" and (body := well.pop() if well else health) is not None:
            return web.json_response(body)
        await ended.wait()
        return web.Response()

    async with RawTestServer(handle) as server:
        url, settings = str(server.make_url("/")), {"timeout_seconds": 0.4, "outage_seconds": 1.0, "max_retries": 3}
        async with ToolServerClient(parse_urls(url), **settings, max_connections=8) as caller:
            with pytest.raises(ToolCallError) as raised:
                await caller.call(ToolRequest("t", CALL))
        ended.set()

    assert raised.value.cause == cause


@pytest.mark.feature("verl-tool", "retries of calls and error texts")
async def test_errors_are_observations_if_the_job_sets_on_tool_failure_to_text(new_harness):
    harness = new_harness([CALL], dead_port(), toolOutageTimeout=1.0, onToolFailure="text")

    result = await harness.play()

    assert isinstance(result, EpisodeResult)
    assert "Tool server connection error: " in text_of(result)
    assert (result.detail, result.summary.metrics["tool_call_success"]) == ("tool_signaled_done", 0.0)


async def test_an_empty_response_of_the_engine_fails_the_trajectory(new_harness, server):
    harness = new_harness([""], server)

    failure = await harness.play()

    assert failure.cause == "inference"


async def test_the_tokens_of_a_failed_trajectory_are_logged_as_not_trained(new_harness, server):
    harness = new_harness([CALL, ""], server)

    failure = await harness.play()

    assert failure.cause == "inference"
    assert harness.logged()[0].mask == (0, len(CALL + "[2]"))


@pytest.mark.parametrize("reward", [lambda: 1 / 0, lambda: math.nan, lambda: -math.inf])
async def test_a_reward_that_raises_or_is_not_finite_fails_the_trajectory(new_harness, server, monkeypatch, reward):
    harness = new_harness([ANSWER], server)
    monkeypatch.setattr(harness.loop.sources.training, "reward", lambda task, answer: reward())

    failure = await harness.play()

    assert failure.cause == "reward"


@pytest.mark.feature("verl-tool", "retokenized responses")
async def test_responses_can_be_retokenized(new_harness, server):
    harness = new_harness([CALL, ANSWER], server, retokenization=True)

    result = await harness.play()

    (row,) = result.rows
    assert len(row.response.ids) == len(row.response.mask) == len(row.response.log_probs)
    assert result.summary.metrics["retokenization_diff"] == 0.0


@pytest.mark.feature("verl-tool", "log-probs of the rollout")
async def test_log_probs_can_be_left_out_of_rows(new_harness, server):
    result = await new_harness([CALL, ANSWER], server).play()

    assert verl_rows(result, log_probs=False)[0].response_logprobs is None


async def test_the_sampling_seed_depends_only_on_the_task_and_the_sample(new_harness, server):
    harness = new_harness(lambda r: ANSWER, server)

    for sample in (0, 0, 1):
        await harness.play(sample=sample)

    first, again, other = (request.sampling_params["seed"] for request in harness.policy.requests)
    assert first == again != other


@pytest.mark.feature("verl-tool", "records of trajectories")
async def test_a_trajectory_is_logged_turn_by_turn(new_harness, server):
    harness = new_harness([CALL, ANSWER], server)

    result = await harness.play()

    first, last = harness.logged()
    assert (first.action, first.observation, first.done) == (CALL, "[2]", False)
    assert (last.reward, last.stop_reason, last.stop_detail) == (
        result.summary.reward,
        "completed",
        "model_chose_to_finish",
    )
    assert first.prompt_ids + first.response_ids + first.observation_ids + last.response_ids == (
        result.rows[0].prompt_ids + result.rows[0].response.ids
    )
    assert not last.prompt_ids
    assert (first.environment_name, last.environment_name) == ("arithmetic", "")
    assert first.seconds.keys() == {"generation", "tools"}
    assert last.seconds.keys() == {"generation"}
    assert 0 < first.asked_at < last.asked_at


@pytest.mark.parametrize(
    ("agent", "masks"),
    [
        ({}, [(), ()]),
        ({"maskObservations": False}, [(len(CALL), 0, len("[2]")), ()]),
        ({"maskOverlongLoss": True}, [(0, len(CALL + "[2]")), (0, len(CALL))]),
    ],
)
async def test_the_response_mask_of_a_turn_is_logged(new_harness, server, agent, masks):
    harness = new_harness([CALL, CALL], server, **agent)

    await harness.play()

    assert [turn.mask for turn in harness.logged()] == masks


EVERY_TRAJECTORY = {
    *("num_turns", "empty_responses", "per_action_length", "traj_actions_length", "traj_obs_length"),
    *("generated_length", "is_traj_finished", "valid_traj", "no_loss_on_traj", "per_action_logp", "turn_1_action_logp"),
}
WITH_TOOLS = {
    *("valid_action", "per_obs_length", "tool_call_success", "tool_processing_time_sec", "tool_queue_time_sec"),
    *("client_queued_time_sec", "client_conn_create_time_sec", "client_request_send_time_sec"),
    *("response_read_time_sec", "response_size_mb", "response_await_time_sec", "interact_time_time_sec"),
    *("session_request_time", "X-Process-Time_sec"),
}


@pytest.mark.feature("verl-tool", "metrics of the agent")
async def test_an_episode_has_the_metrics_of_verl_tool(new_harness, server):
    result = await new_harness([CALL, ANSWER], server).play()

    assert result.summary.metrics.keys() >= EVERY_TRAJECTORY | WITH_TOOLS
    assert result.summary.metrics["tool_processing_time_sec"] == 0.004
    assert result.summary.metrics["response_await_time_sec"] > 0


@pytest.mark.feature("verl-tool", "metrics of the agent")
async def test_metrics_are_counts_sums_and_means_as_in_verl_tool(new_harness):
    valid = iter([True, False, True])

    def answer(call: dict[str, Any]) -> web.Response:
        observed = {"observations": ["[2]"], "dones": [False], "valids": [next(valid)], "processing_time_ms": 1000.0}
        return web.json_response(observed | {"queue_time_ms": 500.0})

    async with HttpTools(answer) as server:
        result = await new_harness([CALL, CALL, CALL, ANSWER], server, maxTurns=3).play()

    metrics = result.summary.metrics
    assert (metrics["valid_action"], metrics["valid_action_ratio"]) == (2.0, pytest.approx(2 / 3))
    assert (metrics["tool_processing_time_sec"], metrics["tool_queue_time_sec"]) == (3.0, 1.5)
    assert (metrics["empty_responses"], metrics["tool_call_success"]) == (0.0, 1.0)
    assert [name for name in metrics if name.startswith("turn_")] == [f"turn_{k}_action_logp" for k in (1, 2, 3, 4)]


def advantages_of(played: dict[str, EpisodeResult]) -> dict[str, float]:
    keys = list(played)
    scores_RG = torch.tensor([[0.0, played[key].summary.reward] for key in keys])
    rows = Rows(keys, torch.full((len(keys),), 2), torch.ones_like(scores_RG), scores_RG, scores_RG)
    found_RG, _ = trajectory_algorithm_of(Grpo()).advantages(rows)
    return dict(zip(keys, found_RG[:, 0].tolist(), strict=True))


async def test_failed_calls_do_not_change_the_other_trajectories(new_harness):
    def answer(request: Any) -> str:
        if "[2]" not in request.prompt:
            return CALL
        truth = harness.loop.sources.training.training(0).truth
        return f"answer:{truth if request.sampling_params['seed'] % 2 else 0}{END}"

    broken: set[str] = set()

    def name_of(call: dict[str, Any]) -> str:
        return str(call["trajectory"]).rpartition("-")[0]

    def forced(call: dict[str, Any]) -> Any:
        return web.Response(status=503, text="out of order") if name_of(call) in broken else "[2]"

    async with HttpTools(forced) as server:
        harness = new_harness(answer, server, toolCallMaxRetries=0, toolOutageTimeout=0.5)
        names = {f"uid0_{sample}_0": sample for sample in range(64)}

        undisturbed = {key: await harness.play(sample=sample) for key, sample in names.items()}
        broken.update(name_of(call) for number, call in enumerate(server.calls) if number % 100 % 7 == 3)
        harness.policy.requests.clear()
        disturbed = {key: await harness.play(sample=sample) for key, sample in names.items()}

    survivors = {key: result for key, result in disturbed.items() if isinstance(result, EpisodeResult)}
    assert 0.1 < 1 - len(survivors) / len(names) < 0.2
    assert len({result.summary.reward for result in survivors.values()}) == 2
    expected, found = advantages_of({key: undisturbed[key] for key in survivors}), advantages_of(survivors)
    assert max(abs(expected[key] - found[key]) for key in survivors) < 1e-6
    assert not any("out of order" in prompt or "503" in prompt for prompt in harness.prompts)
    assert all(result.rows == undisturbed[key].rows for key, result in survivors.items())


async def test_time_in_which_the_event_loop_stands_still_is_no_part_of_a_calls_timeout():
    def answer(call: dict[str, Any]) -> str:
        # The server of the test has the caller's event loop.
        time.sleep(3)
        return "[2]"

    async with HttpTools(answer) as server:
        urls = parse_urls(server.url)
        async with ToolServerClient(
            urls, timeout_seconds=1.5, outage_seconds=1.5, max_retries=0, max_connections=1
        ) as caller:
            assert (await caller.call(ToolRequest("t", CALL))).text == "[2]"


async def test_a_server_that_does_not_answer_ends_a_call_in_its_time():
    async with HttpTools(lambda call: "[2]") as hanging:
        hanging.may_answer.clear()
        urls = parse_urls(hanging.url)
        async with ToolServerClient(
            urls, timeout_seconds=1.5, outage_seconds=1.5, max_retries=0, max_connections=1
        ) as caller:
            with pytest.raises(ToolCallTimeoutError, match=r"did not answer within 3.5 s"):
                await caller.call(ToolRequest("t", CALL))
