"""Harness that runs verl's agent loops in verl's own worker, without a trainer and with a scripted policy."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf
from transformers import PretrainedConfig, PreTrainedTokenizerFast, Qwen2Config
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

from turnmill.core.trajectory import EpisodeSummary
from turnmill.jobs import AgentTrainingJob
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog, TurnRecord
from turnmill.rollout.journal import Journal, NoJournal
from turnmill.rollout.multi_turn.worker_mixin import MultiTurnWorkerMixin
from turnmill.rollout.rows import EpisodeRow
from turnmill.rollout.verl_types import BatchRow
from turnmill.testing.agent_loops import SAMPLING, job_of
from turnmill.testing.policies import Script, ScriptedPolicy, character_tokenizer
from turnmill.training.verl.config import build_verl_config

THINKS = """
{%- macro spelled(content) %}{% if content is string %}{{- content }}{% else %}{% for part in content %}
{{- '<|vision_start|><|image_pad|><|vision_end|>' if part.type == 'image' else part.text }}{% endfor %}{% endif %}
{%- endmacro %}
{%- if tools %}{{- '<|im_start|>system\\nTools:' }}{% for tool in tools %}{{- ' ' + tool.function.name }}
{%- endfor %}{{- '<|im_end|>\\n' }}{% endif %}
{%- set asked = namespace(last=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set asked.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- set content = spelled(message.content) %}
{%- if message.role == 'assistant' %}
{%- if loop.index0 < asked.last and '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}
{{- '<|im_start|>assistant\\n' + content }}
{%- for call in message.tool_calls or [] %}{{- '<tool_call>' }}{{- call.function | tojson }}{{- '</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}
{%- else %}{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
"""Chat template like Qwen3's: reasoning before the last question is left out, and tool results are user messages."""

FORGETS = THINKS.replace("loop.index0 < asked.last and", "not loop.last and")
"""Chat template like those of QwQ and DeepSeek-R1, which leaves out the reasoning of all but the last message."""


def summary_of(row: EpisodeRow) -> EpisodeSummary:
    """Return the summary of the episode that a row carries to the trainer."""
    return row.episode_summary


class _Worker(MultiTurnWorkerMixin, AgentLoopWorker):
    """verl's worker, which returns the rows that it would put into the queue."""


class ConversationHarness:
    """Harness of verl's agent loop worker with a scripted policy and a run folder."""

    def __init__(
        self,
        folder: Path,
        script: Script,
        job: AgentTrainingJob,
        *,
        template: str = THINKS,
        journal: Journal | None = None,
        model: Any = None,
    ) -> None:
        """Take a folder for model and run, and a multi-modal model if the policy is to read images."""
        self.tokenizer = model.tokenizer if model else character_tokenizer()
        self.tokenizer.chat_template = template
        self.policy = model.policy(script) if model else ScriptedPolicy(self.tokenizer, script)
        self.folder = RunFolder(folder / "run")
        self.folder.create()
        config = _config(folder, job, self.tokenizer, model.config if model else _tiny(self.tokenizer))
        self.worker = _Worker(config, self.policy, None, None, journal=journal or NoJournal())
        self.worker.processor = model.processor if model else None
        if model:
            model.processor.chat_template = template

    async def play(
        self, *, task: int = 0, sample: int = 0, step: int = 1, validate: bool = False, **row: Any
    ) -> Any:  # fmt: skip
        """Return the rows of one trajectory, or its EpisodeFailure."""
        batch_row = {"index": task, "session_id": sample, "global_steps": step, "uid": f"task{task}"} | row
        return await self.worker.play(SAMPLING, validate=validate, **cast(BatchRow, batch_row))

    @property
    def prompts(self) -> list[str]:
        """Prompts of all requests to the policy, in order."""
        return [request.prompt for request in self.policy.requests]

    def logged(self) -> list[TurnRecord]:
        """Return the turns that the loop logged in its run folder."""
        return list(TrajectoryLog(self.folder).read_turns(validation=False))


def conversation_job(
    tasks: Path,
    *,
    reward: str | None = None,
    validation_samples: int = 0,
    verl: Mapping[str, object] | None = None,
    **agent: object,
) -> AgentTrainingJob:
    """Return a job of one step whose tasks are the rows of a file; with samples, one of them is for validations."""
    reward = reward or "turnmill.testing.conversations:says_done"
    validates = int(validation_samples > 0)
    options = {"path": str(tasks), "validationTasks": validates, "reward": reward}
    return job_of(
        {"type": "multi_turn", "groupSize": 2, "maxPromptLength": 512, "maxResponseLength": 512} | agent,
        {"name": "dataset", "options": options},
        algorithm={"type": "grpo"},
        verl=verl,
        tasksPerStep=1,
        validation={"episodes": validates, "samples": max(1, validation_samples)},
    )


def says_done(answer: Any, truth: object, extra_info: object) -> float:
    """Return 1 if the last response ends with `done`, 0 otherwise."""
    return float(answer.last.endswith("done"))


def _tiny(tokenizer: PreTrainedTokenizerFast) -> PretrainedConfig:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    return Qwen2Config(vocab_size=len(tokenizer), architectures=["Qwen2ForCausalLM"], **sizes)


def _config(
    folder: Path, job: AgentTrainingJob, tokenizer: PreTrainedTokenizerFast, model_config: PretrainedConfig
) -> Any:
    """Return verl's configuration of the job, with a model without weights."""
    model = folder / "model"
    model_config.save_pretrained(model)
    tokenizer.save_pretrained(model)
    config = build_verl_config(job, model=model, run_dir=folder / "run", device="cpu")
    OmegaConf.set_struct(config, False)
    OmegaConf.resolve(config)
    return config
