"""The rows of an episode as verl's agent loops return them."""

from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from turnmill.rollout.grl.episode import GrlEpisode


def verl_rows(episode: GrlEpisode) -> list[AgentLoopOutput]:
    """Rows without scores of their own: what they are worth follows from all episodes of a step."""
    told = episode.told()
    versions = [int(turn.metrics["oldest_version"]) for turn in episode.turns]
    common = {
        "reward_extra_info": {},
        "min_global_steps": min(versions),
        "max_global_steps": max(turn.policy_version for turn in episode.turns),
        "trajectory": told,
    }
    return [
        AgentLoopOutput(
            prompt_ids=list(row.prompt_ids),
            response_ids=list(row.response.ids),
            response_mask=list(row.response.mask),
            response_logprobs=list(row.response.log_probs),
            reward_score=episode.reward,
            num_turns=episode.num_turns,
            metrics=AgentLoopMetrics(),
            extra_fields=dict(common),
        )
        for row in episode.conversation.rows
    ]
