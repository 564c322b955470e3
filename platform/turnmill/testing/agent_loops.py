"""Harnesses that run an agent loop without a trainer, with a scripted policy, and read its logs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, DictConfigWrap

from turnmill.jobs import AgentTrainingJob
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog, TurnRecord
from turnmill.rollout.grl.loop import GrlLoop
from turnmill.rollout.tool_agent.loop import ToolLoop
from turnmill.rollout.verlog.turn_loop import TurnLoop
from turnmill.testing.policies import Script, ScriptedPolicy, character_tokenizer
from turnmill.training.agent_kinds import agent_kind

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}
TOKENIZER = character_tokenizer()
END = TOKENIZER.eos_token

_DATA = OmegaConf.create({"apply_chat_template_kwargs": {}})


class AgentLoopHarness:
    """An agent loop with a scripted policy, a tokenizer and a run folder."""

    loop: Any

    def __init__(
        self,
        kind: type[AgentLoopBase],
        run_dir: Path,
        script: Script,
        job: AgentTrainingJob,
        *,
        model: Any = None,
        **more: object,
    ) -> None:
        """Take a multi-modal model if the policy is to read images."""
        self.policy = model.policy(script) if model else ScriptedPolicy(TOKENIZER, script)
        self.folder = RunFolder(run_dir)
        self.folder.create()
        prompt_length = agent_kind(job.spec.agent).max_prompt_tokens
        config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"prompt_length": prompt_length}}, "data": _DATA})
        self.loop = kind(
            trainer_config=DictConfigWrap(config),
            server_manager=self.policy,
            tokenizer=model.tokenizer if model else TOKENIZER,
            processor=model.processor if model else None,
            hf_model_type="qwen2_vl" if model else "qwen2",
            dataset_cls=None,
            data_config=DictConfigWrap(_DATA),
            job=job,
            run_dir=run_dir,
            **more,
        )

    @property
    def prompts(self) -> list[str]:
        """Prompts of all requests to the policy, in order."""
        return [request.prompt for request in self.policy.requests]

    def logged(self, *, validation: bool = False) -> list[TurnRecord]:
        """Return the turns that the loop logged in its run folder."""
        return list(TrajectoryLog(self.folder).read_turns(validation=validation))


class TurnLoopHarness(AgentLoopHarness):
    """Harness of the loop over turns of environments."""

    def __init__(self, run_dir: Path, script: Script, job: AgentTrainingJob, **more: object) -> None:
        super().__init__(TurnLoop, run_dir, script, job, **more)

    async def play(self, step: int = 1, *, slot: int = 0, validate: bool = False) -> list[Any]:
        """Return the rows of a segment of a slot, or of an episode of a validation."""
        return list(await self.loop.run(SAMPLING, slot=slot, global_steps=step, validate=validate))


class ToolLoopHarness(AgentLoopHarness):
    """Harness of the loop that calls tools."""

    def __init__(self, run_dir: Path, script: Script, job: AgentTrainingJob, url: str | None, **more: object) -> None:
        super().__init__(ToolLoop, run_dir, script, job, tool_server_url=url, **more)

    async def play(self, *, task: int = 0, sample: int = 0, step: int = 1, validate: bool = False) -> Any:
        """Return the EpisodeResult of one trajectory, or its EpisodeFailure."""
        return await self.loop.run(SAMPLING, index=task, session_id=sample, global_steps=step, validate=validate)


class GrlLoopHarness(AgentLoopHarness):
    """Harness of the loop for groups of GRL's agents."""

    def __init__(self, run_dir: Path, script: Script, job: AgentTrainingJob, **more: object) -> None:
        super().__init__(GrlLoop, run_dir, script, job, **more)

    async def play(
        self, *, group: int = 0, member: int = 0, step: int = 1, validate: bool = False, lockstep: Any = None
    ) -> Any:
        """Return an episode, or its EpisodeFailure."""
        return await self.loop.run(
            SAMPLING, index=group, session_id=member, global_steps=step, validate=validate, lockstep=lockstep
        )


def job_of(
    agent: Mapping[str, object],
    environment: Mapping[str, object] | None,
    *,
    algorithm: Mapping[str, object] | None = None,
    verl: Mapping[str, object] | None = None,
    **training: object,
) -> AgentTrainingJob:
    """Return a job of one step."""
    spec = {
        "model": {"warmStart": {}},
        "agent": agent,
        **({} if environment is None else {"environment": environment}),
        "training": {"steps": 1, "validation": {"episodes": 2}} | training,
    }
    return AgentTrainingJob.model_validate(
        {
            "apiVersion": "turnmill.dev/v1alpha1",
            "kind": "AgentTrainingJob",
            "metadata": {"name": "played"},
            "spec": spec | ({"algorithm": algorithm} if algorithm else {}) | ({"verl": verl} if verl else {}),
        }
    )


def tool_job(environment: Mapping[str, object] | None = None, **agent: object) -> AgentTrainingJob:
    """Return a job of an agent that calls a tool between <py> and </py>."""
    return job_of(
        {"type": "tool", "stopTokens": ["</py>"], "maxTurns": 1, "toolCallTimeout": 5.0, "toolOutageTimeout": 5.0}
        | agent,
        environment or {"name": "arithmetic"},
        algorithm={"type": "grpo"},
        tasksPerStep=4,
    )
