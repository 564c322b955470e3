"""Conversion of a verl command line into a job: fields of a job, `spec.verl`, or a note that says why not."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnmill.core.errors import SettingsError
from turnmill.jobs.algorithm import AlgorithmSettings
from turnmill.jobs.job import API_VERSION, KIND
from turnmill.jobs.values import fields_by_alias, sections_in, tag_of
from turnmill.jobs.yaml_file import parse_yaml
from turnmill.training.verl.config import unknown_verl_settings
from turnmill.training.verl.known_settings import NO_OTHER_ENGINE, names_without_effect

Data = dict[str, Any]

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
MULTI_TURN, LOOPS = f"{ROLLOUT}.multi_turn", f"{ROLLOUT}.agent"

FIELDS: Mapping[str, str] = {
    "actor_rollout_ref.model.path": "model.path",
    "actor_rollout_ref.model.lora_alpha": "model.lora.alpha",
    "actor_rollout_ref.model.lora_rank": "model.lora.rank",
    f"{ACTOR}.clip_ratio": "algorithm.clipRatio",
    f"{ACTOR}.clip_ratio_high": "algorithm.clipRatioHigh",
    f"{ACTOR}.clip_ratio_low": "algorithm.clipRatio",
    f"{ACTOR}.entropy_coeff": "algorithm.entropyCoefficient",
    f"{ACTOR}.grad_clip": "algorithm.gradientClip",
    f"{ACTOR}.optim.betas": "algorithm.adamBetas",
    f"{ACTOR}.optim.lr": "algorithm.actorLearningRate",
    f"{ACTOR}.optim.weight_decay": "algorithm.weightDecay",
    f"{ACTOR}.ppo_epochs": "algorithm.epochs",
    f"{ACTOR}.ppo_max_token_len_per_gpu": "resources.train.microBatchTokens",
    f"{ACTOR}.ppo_mini_batch_size": "algorithm.minibatchTasks",
    f"{ACTOR}.ulysses_sequence_parallel_size": "resources.train.sequenceParallel",
    f"{LOOPS}.agent_loop_config_path": "agent.agentLoopConfigPath",
    f"{LOOPS}.agent_loop_manager_class": "agent.agentLoopManagerClass",
    f"{LOOPS}.default_agent_loop": "agent.defaultAgentLoop",
    f"{LOOPS}.num_workers": "resources.agentLoopWorkers",
    f"{MULTI_TURN}.format": "agent.format",
    f"{MULTI_TURN}.function_tool_path": "agent.functionToolPath",
    f"{MULTI_TURN}.max_assistant_turns": "agent.maxAssistantTurns",
    f"{MULTI_TURN}.max_parallel_calls": "agent.maxParallelCalls",
    f"{MULTI_TURN}.max_tool_response_length": "agent.maxToolResponseLength",
    f"{MULTI_TURN}.max_user_turns": "agent.maxUserTurns",
    f"{MULTI_TURN}.tokenization_sanity_check_mode": "agent.tokenizationSanityCheckMode",
    f"{MULTI_TURN}.tool_config_path": "agent.toolConfigPath",
    f"{MULTI_TURN}.tool_response_truncate_side": "agent.toolResponseTruncateSide",
    f"{MULTI_TURN}.use_inference_chat_template": "agent.useInferenceChatTemplate",
    f"{ROLLOUT}.dtype": "resources.rollout.dtype",
    f"{ROLLOUT}.gpu_memory_utilization": "resources.rollout.gpuMemoryShare",
    f"{ROLLOUT}.max_num_seqs": "resources.rollout.maxSequences",
    f"{ROLLOUT}.n": "agent.groupSize",
    f"{ROLLOUT}.temperature": "agent.temperature",
    f"{ROLLOUT}.tensor_model_parallel_size": "resources.rollout.tensorParallel",
    f"{ROLLOUT}.tool_kwargs.tools_config_file": "agent.toolConfigPath",
    f"{ROLLOUT}.val_kwargs.n": "training.validation.samples",
    f"{ROLLOUT}.val_kwargs.temperature": "training.validation.temperature",
    "algorithm.gamma": "algorithm.gamma",
    "algorithm.lam": "algorithm.gaeLambda",
    "algorithm.norm_adv_by_std_in_grpo": "algorithm.normalise",
    "critic.cliprange_value": "algorithm.valueClip",
    "critic.optim.lr": "algorithm.criticLearningRate",
    "data.filter_overlong_prompts": "agent.filterOverlongPrompts",
    "data.max_prompt_length": "agent.maxPromptLength",
    "data.max_response_length": "agent.maxResponseLength",
    "data.prompt_key": "environment.options.promptKey",
    "data.return_multi_modal_inputs": "agent.returnMultiModalInputs",
    "data.seed": "training.seed",
    "data.train_batch_size": "training.tasksPerStep",
    "data.train_files": "environment.options.path",
    "data.val_batch_size": "training.validation.episodes",
    "data.val_files": "environment.options.validationPath",
    "trainer.logger": "tracking.loggers",
    "trainer.n_gpus_per_node": "resources.train.gpusPerNode",
    "trainer.nnodes": "resources.train.nodes",
    "trainer.project_name": "tracking.project",
    "trainer.total_training_steps": "training.steps",
}
"""Fields of a job by verl's names."""

ESTIMATORS = {"gae": "ppo"}
"""Types of algorithms whose names differ from verl's estimators."""

READ_HERE = frozenset(
    {
        *("algorithm.adv_estimator", "algorithm.kl_ctrl.kl_coef", "algorithm.use_kl_in_reward"),
        *(f"{ACTOR}.kl_loss_coef", f"{ACTOR}.use_kl_loss", f"{MULTI_TURN}.enable", f"{ROLLOUT}.multi_turn"),
        *("custom_reward_function.name", "custom_reward_function.path", "trainer.critic_warmup"),
        *("trainer.experiment_name", "trainer.save_freq", "trainer.test_freq", "trainer.total_epochs"),
        "trainer.val_only",
        f"{ROLLOUT}.name",
    }
)

MICRO_BATCHES = re.compile(r".*(micro_batch_size(_per_gpu)?|use_dynamic_bsz)")


@dataclass(slots=True)
class Conversion:
    """A job's data, and a sentence on each setting that has no place in it."""

    data: Data = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, name: str, sentence: str) -> None:
        """Add a sentence on a setting."""
        self.notes.append(f"{name}: {sentence}")

    def put(self, path: str, value: object) -> None:
        """Set a field below `spec`."""
        *sections, name = path.split(".")
        node = self.data.setdefault("spec", {})
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = value


def convert(words: Iterable[str], *, steps: int | None = None) -> Conversion:
    """Convert the words of a verl command line. Raises SettingsError if it has no number of steps."""
    given = read_settings(words)
    found = Conversion({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": _job_name(given)}})
    found.put("agent.type", "multi_turn")
    uses_tools = any(name.startswith((MULTI_TURN, f"{ROLLOUT}.tool_kwargs")) for name in given)
    if not uses_tools:
        found.put("agent.defaultAgentLoop", "single_turn_agent")
    found.put("environment.name", "dataset")
    found.put("environment.options.reward", _reward(given))
    found.put("algorithm.type", ESTIMATORS.get(str(given.get("algorithm.adv_estimator", "gae")), "") or
              str(given.get("algorithm.adv_estimator")))  # fmt: skip
    if _int(given.get("actor_rollout_ref.model.lora_rank")) == 0:
        given = {name: value for name, value in given.items() if ".lora_" not in name}
    for name, value in given.items():
        if name in FIELDS:
            _put_field(found, name, value)
    _put_kl(found, given)
    _put_schedule(found, given, steps)
    _drop_unknown_fields(found, given)
    rest = {name: value for name, value in given.items() if name not in FIELDS and name not in READ_HERE}
    _put_verl(found, given, rest)
    return found


def read_settings(words: Iterable[str]) -> dict[str, object]:
    """Return the settings among the words of a command line, as Hydra reads `name=value`."""
    given: dict[str, object] = {}
    for word in words:
        name, equals, text = word.strip().partition("=")
        if equals and re.fullmatch(r"\+{0,2}[A-Za-z_][\w.]*", name):
            given[name.lstrip("+")] = parse_yaml(text).value
    if not given:
        raise SettingsError("The command line has no setting of verl's. Write it as name=value.")
    return given


def _put_field(found: Conversion, name: str, value: object) -> None:
    path = FIELDS[name]
    if path.startswith("environment.options.") and isinstance(value, list):
        if len(value) != 1:
            found.note(name, f"a job has one file, not {len(value)}. Join them, and set spec.{path}.")
            return
        value = value[0]
    if path == "tracking.loggers" and isinstance(value, str):
        value = [value]
    if value is not None:
        found.put(path, value)


def _put_kl(found: Conversion, given: Mapping[str, object]) -> None:
    if given.get(f"{ACTOR}.use_kl_loss"):
        found.put("algorithm.kl", {"in": "loss", "coefficient": given.get(f"{ACTOR}.kl_loss_coef", 0.001)})
    elif given.get("algorithm.use_kl_in_reward"):
        found.put("algorithm.kl", {"coefficient": given.get("algorithm.kl_ctrl.kl_coef", 0.001)})
    else:
        found.put("algorithm.kl", {"coefficient": 0})


def _put_schedule(found: Conversion, given: Mapping[str, object], steps: int | None) -> None:
    if given.get("trainer.val_only") is True:
        found.put("training.steps", 0)
        return
    total = steps or _int(given.get("trainer.total_training_steps")) or _steps_of_epochs(given)
    if total is None:
        raise SettingsError(
            "trainer.total_training_steps is missing, and the file of data.train_files, from which the steps of "
            "trainer.total_epochs could be counted, is not here. Give the number of steps with --steps."
        )
    found.put("training.steps", total)
    save, test = _int(given.get("trainer.save_freq")), _int(given.get("trainer.test_freq"))
    if save is not None:
        found.put("training.checkpointEvery", save if save > 0 else total)
    if test is not None and test > 0:
        found.put("training.validation.every", test)
    # verl names the first step in which the policy learns, and 0 means the first one too.
    if (warmup := _int(given.get("trainer.critic_warmup"))) is not None:
        found.put("algorithm.criticWarmupSteps", max(0, warmup - 1))


def _steps_of_epochs(given: Mapping[str, object]) -> int | None:
    epochs, batch = _int(given.get("trainer.total_epochs")), _int(given.get("data.train_batch_size"))
    files = given.get("data.train_files")
    paths = [Path(str(path)) for path in (files if isinstance(files, list) else [files])]
    if not epochs or not batch or not all(path.is_file() for path in paths):
        return None
    rows = sum(map(_num_rows, paths))
    return max(1, epochs * math.floor(rows / batch))


def _num_rows(path: Path) -> int:
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return int(parquet.read_metadata(path).num_rows)
    return sum(1 for line in path.read_text(encoding="utf-8").split("\n") if line.strip())


def _drop_unknown_fields(found: Conversion, given: Mapping[str, object]) -> None:
    """Drop fields that the algorithm does not have, such as those of a critic."""
    algorithm = found.data["spec"]["algorithm"]
    by_type = {tag_of(section): section for section in sections_in(AlgorithmSettings)}
    section = by_type.get(algorithm["type"])
    if section is None:
        found.note(
            "algorithm.adv_estimator", f"{algorithm['type']!r} is no algorithm here. Known: {', '.join(by_type)}."
        )
        return
    names = {path.removeprefix("algorithm."): name for name, path in FIELDS.items() if path.startswith("algorithm.")}
    for unknown in [name for name in algorithm if name not in fields_by_alias(section)]:
        del algorithm[unknown]
        if (name := names.get(unknown)) in given:
            found.note(str(name), f"the algorithm {algorithm['type']} does not use it.")


def _put_verl(found: Conversion, given: Mapping[str, object], rest: Mapping[str, object]) -> None:
    engine = given.get(f"{ROLLOUT}.name", "vllm")
    if engine != "vllm":
        found.note(f"{ROLLOUT}.name", f"{engine} {NO_OTHER_ENGINE[0]}. The job runs with vLLM.")
    unknown, ineffective = dict(unknown_verl_settings(rest)), dict(names_without_effect(rest))
    kept = {}
    for name, value in rest.items():
        if name in unknown:
            closest = f" Did you mean {unknown[name]}?" if unknown[name] else ""
            found.note(name, f"verl has no such setting.{closest}")
        elif name in ineffective:
            found.note(name, ineffective[name])
        elif MICRO_BATCHES.fullmatch(name):
            found.note(name, "micro-batches are filled up to spec.resources.train.microBatchTokens.")
        else:
            kept[name] = value
    if kept:
        found.put("verl", kept)


def _reward(given: Mapping[str, object]) -> str:
    path = given.get("custom_reward_function.path")
    return f"verl:{path}:{given.get('custom_reward_function.name', 'compute_score')}" if path else "verl"


def _job_name(given: Mapping[str, object]) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", str(given.get("trainer.experiment_name", "verl")).lower()).strip("-")
    return (name if name[:1].isalpha() else f"verl-{name}")[:40].strip("-")


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
