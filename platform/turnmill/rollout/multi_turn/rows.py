"""Rows for verl, metrics and turn records of an episode."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from turnmill.core.trajectory import EpisodeFailure, EpisodeSummary
from turnmill.observability.trajectory_log import TurnPosition, TurnRecord
from turnmill.rollout.multi_turn.episode import MultiTurnEpisode, ToolCall
from turnmill.rollout.rows import EpisodeRow
from turnmill.rollout.texts import Decode
from turnmill.rollout.verl_classes import AgentLoopOutput
from turnmill.tasks import Answer


def verl_rows(
    outputs: Sequence[AgentLoopOutput], episode: MultiTurnEpisode, reward: float, *, prediction: str | None = None
) -> list[EpisodeRow]:
    """Return a loop's outputs as rows of a batch, which have the same columns for all loops."""
    oldest, newest = episode.policy_versions
    more = outputs[-1].extra_fields
    common: dict[str, Any] = {
        "turn_scores": list(more.get("turn_scores") or ()),
        "tool_rewards": list(more.get("tool_rewards") or ()),
        "reward_extra_info": dict(more.get("reward_extra_info") or {}),
        "min_global_steps": oldest,
        "max_global_steps": newest,
    }
    summary = EpisodeSummary(
        episode_id=episode.name,
        reward=reward,
        stop_reason=episode.stop_reason,
        success=reward > 0,
        num_turns=len(episode.generations),
        num_rows=len(outputs),
        policy_versions=(oldest, newest),
        sampled_tokens=episode.sampled_tokens,
        seconds=episode.timing.elapsed_seconds(),
        metrics=episode.metrics.read(),
        prediction=prediction,
    )
    return [
        EpisodeRow(
            prompt_ids=output.prompt_ids,
            response_ids=output.response_ids,
            response_mask=output.response_mask,
            response_logprobs=output.response_logprobs or [0.0] * len(output.response_ids),
            multi_modal_data=output.multi_modal_data or {},
            reward_score=reward,
            num_turns=output.num_turns,
            metrics=output.metrics,
            extra_fields=dict(common),
            episode_summary=summary,
        )
        for output in outputs
    ]


def answer_of(episode: MultiTurnEpisode, outputs: Sequence[AgentLoopOutput], decode: Decode) -> Answer:
    """Return the text of the responses, and of all rows."""
    text_of, responses = partial(decode, skip_special_tokens=True), episode.response_ids()
    return Answer(
        last=lambda: "".join(map(text_of, responses[-1:])),
        responses=lambda: "".join(map(text_of, responses)),
        whole=lambda: "".join(text_of(output.response_ids) for output in outputs),
    )


def measure(episode: MultiTurnEpisode) -> None:
    """Record the metrics of the whole episode, by the names of agents of type `tool`."""
    calls = [call for generation in episode.generations for call in generation.calls]
    num_response_tokens = sum(len(ids) for ids in episode.response_ids())
    num_turns = len(episode.generations)
    num_observation_tokens = sum(len(episode.observation_ids_after(number)) for number in range(num_turns))
    for name, value in {
        "num_turns": num_turns,
        "num_tool_calls": len(calls),
        "traj_actions_length": num_response_tokens,
        "traj_obs_length": num_observation_tokens,
        "generated_length": num_response_tokens + num_observation_tokens,
        "is_traj_finished": episode.stop_reason == "completed",
    }.items():
        episode.metrics.put(name, float(value))
    for generation in episode.generations:
        episode.metrics.add("per_action_length", len(generation.output.token_ids))
    for call in calls:
        _measure_call(episode, call)


def _measure_call(episode: MultiTurnEpisode, call: ToolCall) -> None:
    episode.metrics.add("tool_call_success", float(call.result is not None))
    if call.result is None:
        return
    if call.result.reward is not None:
        episode.metrics.add("per_reward_from_tool", call.result.reward)
    for name, value in (call.result.metrics or {}).items():
        if isinstance(value, (int, float)):
            episode.metrics.add(f"tool_avg_{name}", float(value))


def turn_records(
    episode: MultiTurnEpisode,
    environment: str,
    *,
    reward: float,
    failure: EpisodeFailure | None = None,
) -> list[TurnRecord]:
    """Return the turns for the run folder; a failed episode ends with a record of its failure."""
    records = [_record(episode, number, environment) for number in range(len(episode.generations))]
    if failure is not None:
        position = TurnPosition(episode.name, episode.task.number, len(records), episode.step)
        return [*records, TurnRecord.of_failure(failure.cause, failure.message, position)]
    records[-1:] = [
        replace(last, reward=reward, done=True, stop_reason=episode.stop_reason, stop_detail=episode.stop_detail)
        for last in records[-1:]
    ]
    return records


def _call_record(call: ToolCall) -> dict[str, Any]:
    record: dict[str, Any] = {
        "name": call.tool,
        "arguments": repr(dict(call.arguments)),
        "seconds": round(call.seconds, 6),
    }
    if call.result is not None:
        record |= {"observation": call.result.response.text or "", "reward": call.result.reward}
    return record


def _record(episode: MultiTurnEpisode, number: int, environment: str) -> TurnRecord:
    generation, turn = episode.generations[number], episode.turn(number)
    observation_ids = episode.observation_ids_after(number)
    environment_name = environment if number == 0 else ""
    position = TurnPosition(episode.name, episode.task.number, number, episode.step, environment_name)
    return replace(
        TurnRecord.of(turn, position),
        prompt=episode.new_text(0) if number == 0 else turn.prompt_text,
        action=", ".join(call.tool for call in generation.calls),
        observation_ids=observation_ids,
        observation=episode.new_text(number + 1) if observation_ids else turn.observation,
        tool={"calls": [_call_record(call) for call in generation.calls]} if generation.calls else {},
    )
