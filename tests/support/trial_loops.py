"""Agent loops and managers of a user's for tests."""

from typing import Any, ClassVar

from tensordict import TensorDict
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ

from turnmill.rollout.multi_turn.worker import MultiTurnManager


class Twice(AgentLoopBase):
    """Asks twice, from the prompt each time, and returns an output for each response."""

    worth: ClassVar[float] = 0.25

    def __init__(self, *args: Any, word: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.word = word

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        """Two outputs; the last one has the reward."""
        first, last = [await self._ask(sampling_params, row["raw_prompt"]) for _ in range(2)]
        last.reward_score = self.worth
        last.extra_fields["reward_extra_info"] = {"word": self.word}
        return [first, last]

    async def _ask(self, sampling_params: dict[str, Any], messages: list[dict[str, Any]]) -> AgentLoopOutput:
        prompt_ids = await self.ct_build_initial_tokens(messages)
        said = await self.server_manager.generate("", prompt_ids=prompt_ids, sampling_params=sampling_params)
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=said.token_ids,
            response_mask=[1] * len(said.token_ids),
            response_logprobs=said.log_probs,
            num_turns=2,
            metrics=AgentLoopMetrics(),
            extra_fields={},
        )


class Breaks(AgentLoopBase):
    """Has a mistake in it."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Raise."""
        raise ZeroDivisionError


class Sorted(MultiTurnManager):
    """Hands tasks out in another order."""

    def generate_sequences(self, prompts: TensorDict) -> None:
        """The last first."""
        super().generate_sequences(prompts[list(reversed(range(len(prompts))))])


class SortedOfVerl(AgentLoopManagerTQ):
    """The same, as it is written for verl alone."""

    def generate_sequences(self, prompts: TensorDict) -> None:
        """The last first."""
        super().generate_sequences(prompts[list(reversed(range(len(prompts))))])
