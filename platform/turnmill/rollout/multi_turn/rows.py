"""What a conversation comes to: rows for verl, records of its turns, and figures."""

from collections.abc import Mapping, Sequence
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from turnmill.core.trajectory import EpisodeSummary
from turnmill.observability.trajectory_log import TurnRecord
from turnmill.rollout.multi_turn.episode import Call, Conversation
from turnmill.rollout.queue_payload import encode
from turnmill.rollout.rows import EpisodeRow
from turnmill.tasks import Answer


def rows_of(outputs: Sequence[AgentLoopOutput], conversation: Conversation, reward: float) -> list[EpisodeRow]:
    """Return a loop's outputs as rows of one batch, with the same columns whatever loop they come from."""
    oldest, newest = conversation.policy_versions
    more = outputs[-1].extra_fields
    common: dict[str, Any] = {
        "turn_scores": list(more.get("turn_scores") or ()),
        "tool_rewards": list(more.get("tool_rewards") or ()),
        "reward_extra_info": dict(more.get("reward_extra_info") or {}),
        "min_global_steps": oldest,
        "max_global_steps": newest,
    }
    summary = encode(
        EpisodeSummary(
            episode_id=conversation.name,
            reward=reward,
            stop_reason=conversation.stop_reason,
            success=reward > 0,
            num_turns=len(conversation.generations),
            num_rows=len(outputs),
            policy_versions=(oldest, newest),
            sampled_tokens=conversation.sampled,
            seconds=conversation.timing.elapsed_seconds(),
            metrics=conversation.figures.read(),
        )
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


def answer_of(conversation: Conversation, outputs: Sequence[AgentLoopOutput], tokenizer: Any) -> Answer:
    """What the trajectory said, in words."""
    said = [tokenizer.decode(ids, skip_special_tokens=True) for ids in conversation.responses()]
    whole = "".join(tokenizer.decode(output.response_ids, skip_special_tokens=True) for output in outputs)
    return Answer(last=said[-1] if said else "", responses="".join(said), whole=whole)


def measure(conversation: Conversation) -> None:
    """Figures by the names that trajectories of the agent `tool` have."""
    figures = conversation.figures
    calls = [call for generation in conversation.generations for call in generation.calls]
    spoken = sum(len(ids) for ids in conversation.responses())
    read = sum(len(conversation.followed_by(number)) for number in range(len(conversation.generations)))
    for name, value in {
        "num_turns": len(conversation.generations),
        "num_tool_calls": len(calls),
        "traj_actions_length": spoken,
        "traj_obs_length": read,
        "generated_length": spoken + read,
        "is_traj_finished": conversation.stop_reason == "completed",
    }.items():
        figures.put(name, float(value))
    for generation in conversation.generations:
        figures.add("per_action_length", len(generation.output.token_ids))
    for call in calls:
        _measure_call(conversation, call)


def _measure_call(conversation: Conversation, call: Call) -> None:
    conversation.figures.add("tool_call_success", float(call.answered is not None))
    if call.answered is None:
        return
    if call.answered.reward is not None:
        conversation.figures.add("per_reward_from_tool", call.answered.reward)
    for name, value in (call.answered.metrics or {}).items():
        if isinstance(value, (int, float)):
            conversation.figures.add(f"tool_avg_{name}", float(value))


def records_of(
    conversation: Conversation,
    tokenizer: Any,
    environment: str,
    *,
    reward: float,
    failure: Mapping[str, str] | None = None,
) -> list[TurnRecord]:
    """Its turns for the run folder; a failed trajectory ends with one that says what failed."""
    last = len(conversation.generations) - 1
    ends: dict[str, Any] = {
        "reward": reward,
        "done": True,
        "stop_reason": conversation.stop_reason,
        "stop_detail": conversation.detail,
    }
    records = [
        _record(conversation, tokenizer, number, environment, **(ends if number == last and failure is None else {}))
        for number in range(last + 1)
    ]
    if failure is None:
        return records
    end = TurnRecord.of_failure(failure["cause"], failure["message"], **_facts(conversation, len(records)))
    return [*records, end]


def _told(call: Call) -> dict[str, Any]:
    answered = call.answered
    told: dict[str, Any] = {
        "name": call.tool,
        "arguments": repr(dict(call.arguments)),
        "seconds": round(call.seconds, 6),
    }
    if answered is not None:
        told |= {"observation": answered.response.text or "", "reward": answered.reward}
    return told


def _record(conversation: Conversation, tokenizer: Any, number: int, environment: str, **end: Any) -> TurnRecord:
    generation, turn = conversation.generations[number], conversation.turn(number)
    followed_by = conversation.followed_by(number)
    facts = _facts(conversation, number)
    if number == 0:
        facts |= {"prompt": tokenizer.decode(generation.prompt_ids), "environment_name": environment}
    return TurnRecord.of(
        turn,
        **facts,
        action=", ".join(call.tool for call in generation.calls),
        observation_ids=followed_by,
        observation=tokenizer.decode(followed_by) if followed_by else turn.observation,
        tool={"calls": [_told(call) for call in generation.calls]} if generation.calls else {},
        **end,
    )


def _facts(conversation: Conversation, number: int) -> dict[str, Any]:
    return {
        "episode": conversation.name,
        "environment": conversation.task.number,
        "turn": number,
        "step": conversation.step,
    }
