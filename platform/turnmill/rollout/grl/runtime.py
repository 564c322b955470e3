"""The part of the agent loop that an episode of GRL's agents uses."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from turnmill.environments.runtime.process import EnvironmentProcess
from turnmill.jobs.grl_agent import GrlAgent, NamedAgent
from turnmill.rollout.generation import SampledEpisode
from turnmill.rollout.journal import Journal
from turnmill.rollout.verl_classes import TokenOutput
from turnmill.rollout.verl_types import MergeResult, Message, SamplingParams, Tokenizer


class GrlEpisodeRuntime(Protocol):
    """State that all episodes of a loop share: settings, limits, environments, journal, tokenizer and policy."""

    run_name: str
    agent: GrlAgent
    journal: Journal
    tokenizer: Tokenizer

    @property
    def prompt_limit(self) -> AbstractAsyncContextManager[None]:
        """Limits the number of prompts that are tokenized at once."""

    @property
    def environment_limit(self) -> AbstractAsyncContextManager[None]:
        """Limits the number of environments that act at once."""

    def environment_of(self, agent: NamedAgent) -> EnvironmentProcess:
        """Return the process for an agent's environment."""

    def ids_of(self, text: str) -> list[int]:
        """Tokenize a text."""

    async def tokenize_prompt(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Tokenize a prompt of any length."""

    def system_length(self, messages: Sequence[Mapping[str, str]], ids: Sequence[int]) -> int:
        """Return the number of tokens of the system message at the beginning of a prompt; 1 if there is none."""

    async def ct_merge_context_msg(
        self,
        previous_messages: Sequence[Message],
        updated_messages: Sequence[Message],
        runtime_token_ids: list[int],
        response_mask: list[int],
    ) -> tuple[MergeResult, list[int], list[float] | None]:
        """Tokenize a context with messages appended."""

    async def generate(
        self, episode: SampledEpisode, turn: int, prompt_ids: list[int], sampling_params: SamplingParams
    ) -> TokenOutput:
        """Generate the policy's next response in an episode. Raises InferenceError."""
