"""Rows, metrics and turn records of an episode of verl's loops."""

import asyncio
from collections.abc import Sequence

from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from support.gateway import bpe_tokenizer, ids_of
from turnmill.core.trajectory import EpisodeFailure
from turnmill.rollout.episode_id import EpisodeId
from turnmill.rollout.journal import NoJournal
from turnmill.rollout.multi_turn.episode import MultiTurnEpisode
from turnmill.rollout.multi_turn.rows import answer_of, measure, turn_records, verl_rows
from turnmill.rollout.multi_turn.tool_results import ToolResult
from turnmill.rollout.multi_turn.verl_classes import ToolResponse
from turnmill.rollout.token_integrity import pack_tokens
from turnmill.rollout.verl_classes import TokenOutput
from turnmill.tasks import Task

TOKENIZER = bpe_tokenizer()
PROMPT, FIRST, FOUND, LAST = (ids_of(text) for text in ("a prompt", "I look", " found ", "it is done<|im_end|>"))


def episode() -> MultiTurnEpisode:
    """Play two responses; after the first one, one tool answers and another does not."""
    name = EpisodeId(3, 7, 0, validate=False)
    played = MultiTurnEpisode(name, Task(7, []), run_name="run", journal=NoJournal(), decode=TOKENIZER.decode)

    async def play() -> None:
        await played.record_response(PROMPT, output(FIRST, 4), asked_at=1.0)
        call, _ = played.begin_tool_call("search"), played.begin_tool_call("weigh")
        call.arguments = {"word": "x"}
        found = ToolResult(ToolResponse(text="found"), 0.25, {"hits": 2, "where": "here"})
        await played.record_tool_result(call, found)
        await played.record_response([*PROMPT, *FIRST, *FOUND], output(LAST, 5), asked_at=2.0)

    asyncio.run(play())
    return played


def output(ids: Sequence[int], version: int) -> TokenOutput:
    versions = {"min_global_steps": version, "max_global_steps": version}
    return TokenOutput(token_ids=list(ids), log_probs=[-0.5] * len(ids), stop_reason="completed", extra_fields=versions)


def loop_output(log_probs: list[float] | None = None, **extra: object) -> AgentLoopOutput:
    ids = [*FIRST, *FOUND, *LAST]
    return AgentLoopOutput(
        prompt_ids=list(PROMPT), response_ids=ids, response_mask=[1] * len(ids), response_logprobs=log_probs,
        num_turns=4, metrics=AgentLoopMetrics(), extra_fields=extra,
    )  # fmt: skip


def test_every_row_has_the_columns_and_the_summary_of_its_episode():
    played = episode()
    outputs = [loop_output(tool_rewards=[9.0]), loop_output(tool_rewards=[0.25], reward_extra_info={"pred": "x"})]

    first, last = verl_rows(outputs, played, 0.5, prediction="x")

    length = len(FIRST) + len(FOUND) + len(LAST)
    assert first.response_logprobs == last.response_logprobs == [0.0] * length
    assert first.extra_fields == last.extra_fields == {
        "turn_scores": [], "tool_rewards": [0.25], "reward_extra_info": {"pred": "x"},
        "min_global_steps": 4, "max_global_steps": 5,
    }  # fmt: skip
    assert first.reward_score == last.reward_score == 0.5
    summary = first.episode_summary
    assert first.episode_summary == last.episode_summary
    assert (summary.success, summary.num_turns, summary.num_rows, summary.policy_versions) == (True, 2, 2, (4, 5))
    assert summary.sampled_tokens == pack_tokens(FIRST) + pack_tokens(LAST)
    assert not verl_rows(outputs, played, 0.0)[0].episode_summary.success


def test_log_probs_of_a_loop_are_kept():
    log_probs = [-0.5] * len(loop_output().response_ids)

    (row,) = verl_rows([loop_output(log_probs)], episode(), 0.0)

    assert row.response_logprobs == log_probs


def test_an_answer_has_the_last_response_all_responses_and_the_text_of_the_rows():
    answer = answer_of(episode(), [loop_output()], TOKENIZER.decode)

    assert (answer.last, answer.responses) == ("it is done", "I lookit is done")
    assert answer.whole == "I look found it is done"


def test_an_episode_is_measured_by_its_tokens_and_calls():
    played = episode()

    measure(played)

    metrics = played.metrics.read()
    responses = len(FIRST) + len(LAST)
    assert (metrics["num_turns"], metrics["num_tool_calls"], metrics["tool_call_success"]) == (2, 2, 0.5)
    assert (metrics["traj_actions_length"], metrics["traj_obs_length"]) == (responses, len(FOUND))
    assert metrics["generated_length"] == responses + len(FOUND)
    assert metrics["per_action_length"] == responses / 2
    assert (metrics["per_reward_from_tool"], metrics["tool_avg_hits"], metrics["is_traj_finished"]) == (0.25, 2, 1)
    assert "tool_avg_where" not in metrics


def test_turns_are_recorded_with_their_calls_and_the_last_one_with_the_end():
    first, last = turn_records(episode(), "words", reward=0.5)

    assert (first.environment, first.turn, first.step, first.environment_name) == (7, 0, 3, "words")
    assert (first.prompt, first.prompt_ids, first.response_ids) == ("a prompt", PROMPT, FIRST)
    assert (first.observation, first.observation_ids, first.action) == (" found ", FOUND, "search, weigh")
    assert first.tool["calls"] == [
        {"name": "search", "arguments": "{'word': 'x'}", "seconds": 0.0, "observation": "found", "reward": 0.25},
        {"name": "weigh", "arguments": "{}", "seconds": 0.0},
    ]
    assert (first.reward, first.done, first.stop_reason) == (0.0, False, None)
    assert (last.turn, last.prompt_ids, last.environment_name, last.tool) == (1, (), "", {})
    assert (last.reward, last.done, last.stop_reason) == (0.5, True, "completed")


def test_a_failed_episode_ends_with_a_record_of_its_failure():
    failure = EpisodeFailure("e", "sandbox", "it is gone", num_turns=2, seconds={})

    *turns, end = turn_records(episode(), "words", reward=0.5, failure=failure)

    assert [turn.done for turn in turns] == [False, False]
    assert (end.turn, end.failed_cause) == (2, "sandbox")
