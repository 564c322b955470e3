"""What the agent loops of an evaluation get in place of a trainer's."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from omegaconf import OmegaConf
from transformers import PreTrainedTokenizerFast

from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.base_agent import BaseAgent
from turnmill.jobs.verl_settings import setting
from turnmill.rollout.verl_classes import AgentLoopBase, DictConfigWrap
from turnmill.rollout.verl_types import LLMClient
from turnmill.training.agent_kinds import agent_kind

Loop = TypeVar("Loop", bound=AgentLoopBase)

NO_LIMIT = 2**31
"""Tokens of a prompt, if tokens are bytes: the endpoint knows its own limit."""

_TEMPLATE_SETTINGS = "data.apply_chat_template_kwargs"
_VALIDATION = "actor_rollout_ref.rollout.val_kwargs"


@dataclass(frozen=True, slots=True)
class Policy:
    """The model that is evaluated, as agent loops see it."""

    client: LLMClient
    tokenizer: PreTrainedTokenizerFast
    model_type: str | None
    """Name of the model's architecture, by which verl tokenizes appended messages; None if it is unknown."""

    folder: Path | None
    """Folder of the tokenizer; None for an endpoint that takes messages."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The job, the policy, and the services of an evaluation."""

    job: AgentTrainingJob
    run_dir: Path
    policy: Policy
    tool_server_url: str | None = None

    @property
    def sampling(self) -> Mapping[str, object]:
        """The parameters with which responses are sampled."""
        spec = self.job.spec
        return {
            "temperature": spec.training.validation.temperature,
            "top_p": setting(spec.verl, f"{_VALIDATION}.top_p", 1.0),
            "top_k": setting(spec.verl, f"{_VALIDATION}.top_k", -1),
        }

    def with_agent(self, agent: BaseAgent) -> "Setting":
        """Return the same with another agent."""
        spec = self.job.spec.model_copy(update={"agent": agent})
        return replace(self, job=self.job.model_copy(update={"spec": spec}))

    def loop(self, kind: type[Loop], **more: object) -> Loop:
        """Return a loop of a class, with further arguments of its constructor."""
        spec, policy = self.job.spec, self.policy
        limit = NO_LIMIT if policy.folder is None else agent_kind(spec.agent).max_prompt_tokens
        template = setting(spec.verl, _TEMPLATE_SETTINGS, None) or {}
        data = OmegaConf.create({"apply_chat_template_kwargs": template})
        rollout = OmegaConf.create({"actor_rollout_ref": {"rollout": {"prompt_length": limit}}, "data": data})
        return kind(
            trainer_config=DictConfigWrap(rollout),
            server_manager=policy.client,
            tokenizer=policy.tokenizer,
            processor=None,
            hf_model_type=policy.model_type,
            dataset_cls=None,
            data_config=DictConfigWrap(data),
            job=self.job,
            run_dir=self.run_dir,
            **more,
        )
