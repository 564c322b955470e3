"""Agent loops and managers as a user of verl writes them."""

from typing import Any, ClassVar

from tensordict import TensorDict
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ

from turnmill.rollout.multi_turn.worker import MultiTurnManager


class TwoResponses(AgentLoopBase):
    """Generates two responses to the prompt and returns an output for each."""

    reward: ClassVar[float] = 0.25

    def __init__(self, *args: Any, word: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.word = word

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        """Return two outputs; the last one has the reward."""
        first, last = [await self._generate(sampling_params, row["raw_prompt"]) for _ in range(2)]
        last.reward_score = self.reward
        last.extra_fields["reward_extra_info"] = {"pred": self.word}
        return [first, last]

    async def _generate(self, sampling_params: dict[str, Any], messages: list[dict[str, Any]]) -> AgentLoopOutput:
        prompt_ids = await self.ct_build_initial_tokens(messages)
        generated = await self.server_manager.generate("", prompt_ids=prompt_ids, sampling_params=sampling_params)
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=generated.token_ids,
            response_mask=[1] * len(generated.token_ids),
            response_logprobs=generated.log_probs,
            num_turns=2,
            metrics=AgentLoopMetrics(),
            extra_fields={},
        )


class FailingLoop(AgentLoopBase):
    """A loop with a bug."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Raise."""
        raise ZeroDivisionError


class ReversingManager(MultiTurnManager):
    """A manager that reverses the order of tasks."""

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Start the last task first."""
        super().generate_sequences(prompts[list(reversed(range(len(prompts))))])


class ReversingVerlManager(AgentLoopManagerTQ):
    """The same manager, derived from verl's."""

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Start the last task first."""
        super().generate_sequences(prompts[list(reversed(range(len(prompts))))])
