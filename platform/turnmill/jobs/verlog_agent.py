"""The agent loop over environments, whose turns are rows of their own."""

from typing import Annotated, Literal

from pydantic import Field

from turnmill.jobs.base_agent import BaseAgent
from turnmill.jobs.environment import EnvironmentSettings
from turnmill.jobs.settings import Settings

PROMPTS = ("cot", "cot_actions", "document", "naive", "compact")
PromptName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=1024,
        pattern=rf"^({'|'.join(PROMPTS)}|[^:]+[.](txt|md)|[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*)$",
    ),
]


class MemorySettings(Settings):
    """Earlier turns that a prompt contains."""

    text_turns: int = Field(default=1, ge=0, le=1024)
    """Number of earlier turns in the prompt, each with observation and action."""

    thought_turns: int = Field(default=1, ge=0, le=1024)
    """Number of earlier turns with the whole response in the prompt; older ones have their action only."""


class VerlogAgent(BaseAgent):
    """The agent loop over environments: prompts, memory and responses of single turns."""

    implementation = "turnmill.training.agent_kinds.verlog:VerlogKind"

    type: Literal["verlog"] = "verlog"
    """Agent loop: `verlog` learns from single turns with a window of memory."""

    max_turns: int = Field(default=64, ge=1, le=100_000)
    """Turns after which an episode ends with stop reason `max_turns`."""

    memory: MemorySettings = MemorySettings()
    """Earlier turns that a prompt contains."""

    prompt: PromptName = "cot"
    """`cot` asks for a thought and an action, `cot_actions` lists the allowed actions, too (Verlog's for BabaIsAI),
    `document` is laid out as in Verlog's document, `naive` asks for an action alone (Verlog's default), `compact` is
    short, for tiny models; or a file (`.txt`, `.md`) whose text asks instead, or a function `package.module:name` that
    builds the messages."""

    max_prompt_tokens: int = Field(default=1024, ge=16, le=1_000_000)
    """Tokens of a prompt; a longer one loses its oldest part."""

    max_response_tokens: int = Field(default=512, ge=1, le=1_000_000)
    """Tokens of a response."""

    temperature: float = Field(default=1.0, gt=0, le=10)
    """Temperature at which responses are sampled during training."""

    group_size: int = Field(default=8, ge=1, le=65_536)
    """Episodes per task and step for algorithms that compare them; `turn_ppo` has no groups."""

    @property
    def response_token_limit(self) -> int:
        """The tokens that the response of a turn may have: every turn is a row of its own."""
        return self.max_response_tokens

    def max_concurrency(self, environment: EnvironmentSettings) -> int:
        """Return the number of environments: each plays one episode at a time."""
        return environment.count
