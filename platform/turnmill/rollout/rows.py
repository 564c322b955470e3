"""Rows of an episode as verl's agent loops return them."""

from collections.abc import Sequence

from pydantic import Field, InstanceOf

from turnmill.core.trajectory import EpisodeSummary
from turnmill.rollout.tokens import Row
from turnmill.rollout.verl_classes import AgentLoopMetrics, AgentLoopOutput


class EpisodeRow(AgentLoopOutput):
    """A row with the summary of its episode, which `row_tags` puts into a tag."""

    episode_summary: InstanceOf[EpisodeSummary] = Field(exclude=True)


def episode_rows(
    rows: Sequence[Row], summary: EpisodeSummary, *, trained: bool = True, log_probs: bool = True
) -> list[EpisodeRow]:
    """Return the rows of an episode, which all have its reward; without `trained`, they are masked out of the loss."""
    oldest, newest = summary.policy_versions
    return [
        EpisodeRow(
            prompt_ids=list(row.prompt_ids),
            response_ids=list(row.response.ids),
            response_mask=list(row.response.mask) if trained else [0] * len(row.response),
            response_logprobs=list(row.response.log_probs) if log_probs else None,
            multi_modal_data={"images": list(row.images)} if row.images else None,
            reward_score=summary.reward,
            num_turns=summary.num_turns,
            metrics=AgentLoopMetrics(),
            extra_fields={"reward_extra_info": {}, "min_global_steps": oldest, "max_global_steps": newest},
            episode_summary=summary,
        )
        for row in rows
    ]
