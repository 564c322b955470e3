"""Metrics of an episode with tools, by verl-tool's names."""

from collections.abc import Mapping, Sequence

from turnmill.core.trajectory import Turn
from turnmill.rollout.episode_metrics import MAX_TURNS_WITH_METRICS, EpisodeMetrics
from turnmill.rollout.tool_agent.replies import ToolReply
from turnmill.rollout.tool_agent.response import Response


def measure_response(metrics: EpisodeMetrics, number: int, response: Response, *, empty: bool) -> None:
    """Add the length and the log-probs of the response with this number, from 0; the metrics count from 1."""
    metrics.add("per_action_length", len(response.tokens))
    metrics.sum("empty_responses", float(empty))
    if response.tokens.log_probs:
        mean = sum(response.tokens.log_probs) / len(response.tokens.log_probs)
        metrics.add("per_action_logp", mean)
        if number < MAX_TURNS_WITH_METRICS:
            metrics.put(f"turn_{number + 1}_action_logp", mean)


def measure_call(metrics: EpisodeMetrics, answer: ToolReply) -> None:
    """Add the metrics of a tool call, including those that the tool reports."""
    metrics.add("tool_call_success", 1.0)
    metrics.sum("valid_action", float(answer.valid))
    metrics.add("valid_action_ratio", float(answer.valid))
    if answer.reward is not None:
        metrics.add("per_reward_from_tool", answer.reward)
    # Times and sizes.
    for name, value in answer.metrics.items():
        metrics.sum(name, value)
    of_tool = answer.info.get("metrics")
    if isinstance(of_tool, Mapping):
        for name, value in of_tool.items():
            if isinstance(value, (int, float)):
                metrics.add(f"tool_avg_{name}", float(value))


def measure_episode(
    metrics: EpisodeMetrics, turns: Sequence[Turn], *, num_turns: int, finished: bool, void: bool, trained: bool
) -> None:
    """Add the metrics of a whole episode."""
    observed = [len(turn.observation_ids) for turn in turns if turn.observation_ids]
    for length in observed:
        metrics.add("per_obs_length", length)
    metrics.sum("valid_action", 0.0)
    generated = sum(len(turn.response_ids) for turn in turns)
    for name, value in {
        "num_turns": num_turns,
        "num_tool_calls": metrics.count("tool_call_success"),
        "traj_actions_length": generated,
        "traj_obs_length": sum(observed),
        "generated_length": generated + sum(observed),
        "is_traj_finished": finished,
        "valid_traj": not void,
        "no_loss_on_traj": not trained,
    }.items():
        metrics.put(name, float(value))
