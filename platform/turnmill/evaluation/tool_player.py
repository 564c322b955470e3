"""The player of agents with tools: by an endpoint that takes messages, a tool's answer is one of them."""

from typing import ClassVar

from turnmill.core.errors import SettingsError
from turnmill.core.trajectory import EpisodeFailure, EpisodeSummary
from turnmill.evaluation.message_loops import MessageToolLoop, for_messages, in_bytes
from turnmill.evaluation.message_tokens import CONTENT, END, RESPONSE, ROLE
from turnmill.evaluation.player import NEEDS_TOKENS, Player
from turnmill.evaluation.setting import Setting
from turnmill.jobs import AgentTrainingJob
from turnmill.rollout.tool_agent.loop import ToolLoop

_LIMITS = ("max_response_length", "val_max_response_length", "max_obs_length", "max_action_length")


class ToolPlayer(Player):
    """Plays tasks with tools."""

    why_tokens: ClassVar[str | None] = None

    def __init__(self, setting: Setting) -> None:
        takes_tokens = setting.policy.folder is not None
        setting = setting if takes_tokens else _with_messages(setting)
        kind = ToolLoop if takes_tokens else MessageToolLoop
        self._loop = setting.loop(kind, tool_server_url=setting.tool_server_url)
        self._sampling = setting.sampling

    async def play(self, episode: int, sample: int) -> EpisodeSummary | EpisodeFailure:
        """Play one trajectory of a task."""
        result = await self._loop.run(self._sampling, index=episode, session_id=sample, global_steps=0, validate=True)
        return result if isinstance(result, EpisodeFailure) else result.summary

    async def close(self) -> None:
        """Release trajectories, and close connections."""
        await self._loop.close()

    @classmethod
    def require_playable(cls, job: AgentTrainingJob, *, takes_tokens: bool) -> None:
        """Raise SettingsError for a conversation that an endpoint which takes messages could not go on with."""
        agent = job.spec.tool_agent
        if takes_tokens or not agent.enable_agent:
            return
        if not agent.enable_mtrl:
            raise SettingsError(
                "Agents of type 'tool' go on with their own response after a tool's answer, and a chat endpoint begins "
                f"another. Add `--set agent.enableMtrl=true`: then the answer is a message. Or {NEEDS_TOKENS}"
            )
        if agent.mtrl_sep is not None:
            raise SettingsError(
                f"spec.agent.mtrlSep ({agent.mtrl_sep!r}) is a text of one model's chat template, and a chat endpoint "
                f"has its own. Leave it out, or {NEEDS_TOKENS}"
            )


def _with_messages(setting: Setting) -> Setting:
    agent = setting.job.spec.tool_agent
    changes: dict[str, object] = {
        "mtrl_sep": f"{ROLE}{agent.mtrl_role}{CONTENT}{{obs}}{END}{RESPONSE}",
        "turn_end_token": END,
        # Of tokens that the endpoint does not tell.
        "max_start_length": None,
        "additional_eos_token_ids": (),
        "retokenization": False,
    }
    return for_messages(setting, agent.model_copy(update=changes | in_bytes(agent, *_LIMITS)))
