"""Conversion of a verl command line into a job: fields of a job, `spec.verl`, or a note that says why not."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from turnmill.conversion.command_line import read_settings
from turnmill.conversion.converted_job import (
    ACTOR,
    LOOPS,
    MULTI_TURN,
    ROLLOUT,
    Conversion,
    algorithms,
    new_job,
    put_rest,
)
from turnmill.core.errors import SettingsError
from turnmill.jobs.values import fields_by_alias

FIELDS: Mapping[str, str] = {
    "actor_rollout_ref.model.path": "model.path",
    "actor_rollout_ref.model.lora_alpha": "model.lora.alpha",
    "actor_rollout_ref.model.lora_rank": "model.lora.rank",
    f"{ACTOR}.clip_ratio": "algorithm.clipRatio",
    f"{ACTOR}.clip_ratio_high": "algorithm.clipRatioHigh",
    f"{ACTOR}.clip_ratio_low": "algorithm.clipRatio",
    f"{ACTOR}.entropy_coeff": "algorithm.entropyCoefficient",
    f"{ACTOR}.grad_clip": "algorithm.gradientClip",
    f"{ACTOR}.megatron.context_parallel_size": "resources.train.contextParallel",
    f"{ACTOR}.megatron.expert_model_parallel_size": "resources.train.expertParallel",
    f"{ACTOR}.megatron.pipeline_model_parallel_size": "resources.train.pipelineParallel",
    f"{ACTOR}.megatron.tensor_model_parallel_size": "resources.train.tensorParallel",
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
    "algorithm.filter_groups.max_num_gen_batches": "algorithm.dynamicSampling.maxBatches",
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
    "reward.reward_model.model_path": "rewardModel.path",
    "reward.reward_model.rollout.tensor_model_parallel_size": "rewardModel.tensorParallel",
    "reward_model.model.path": "rewardModel.path",
    "reward_model.rollout.tensor_model_parallel_size": "rewardModel.tensorParallel",
    "trainer.logger": "tracking.loggers",
    "trainer.n_gpus_per_node": "resources.train.gpusPerNode",
    "trainer.nnodes": "resources.train.nodes",
    "trainer.project_name": "tracking.project",
    "trainer.total_training_steps": "training.steps",
}
"""Fields of a job by verl's names."""

REWARD_MODELS = ("reward.reward_model", "reward_model")
"""Sections of a reward model, now and before verl 0.8."""

ESTIMATORS = {"gae": "ppo"}
"""Types of algorithms whose names differ from verl's estimators."""

FILTER = "algorithm.filter_groups"
"""DAPO's dynamic sampling, with which the estimator `grpo` is the algorithm `dapo`."""


def convert(words: Iterable[str], *, steps: int | None = None) -> Conversion:
    """Convert the words of a verl command line. Raises SettingsError if it has no number of steps."""
    given = read_settings(words)
    found = new_job(given, "verl")
    found.put("agent.type", "multi_turn")
    uses_tools = any(name.startswith((MULTI_TURN, f"{ROLLOUT}.tool_kwargs")) for name in given)
    if not uses_tools:
        found.put("agent.defaultAgentLoop", "single_turn_agent")
    put_learning(found, given, FIELDS, steps)
    if given.get(f"{MULTI_TURN}.format") == "qwen":
        found.put("agent.format", "hermes")
        found.note(f"{MULTI_TURN}.format", "qwen is called hermes now, as the models call functions in its format.")
    return found


def put_learning(found: Conversion, given: Mapping[str, object], fields: Mapping[str, str], steps: int | None) -> None:
    """Put the settings of an agent that learns from whole trajectories of the tasks of a data set."""
    found.put("environment.name", "dataset")
    found.put("environment.options.reward", _reward(given))
    given = _without_switches(given)
    estimator = str(given.get("algorithm.adv_estimator", "gae"))
    if given.get(f"{FILTER}.enable") is True and estimator == "grpo":
        found.put("algorithm.type", "dapo")
        # DAPO's own clip range is another than verl's.
        found.put("algorithm.clipRatioHigh", 0.2)
        found.note(f"{FILTER}.metric", "dapo leaves out the tasks whose trajectories all have the same reward.")
        given = {name: value for name, value in given.items() if name not in (f"{FILTER}.enable", f"{FILTER}.metric")}
    else:
        found.put("algorithm.type", ESTIMATORS.get(estimator, estimator))
    if _int(given.get("actor_rollout_ref.model.lora_rank")) == 0:
        given = {name: value for name, value in given.items() if ".lora_" not in name}
    put_fields(found, given, fields)
    _put_kl(found, given)
    _put_schedule(found, given, steps)
    _drop_unknown_fields(found, given, fields)
    put_rest(found, {name: value for name, value in given.items() if name not in fields})


def put_fields(found: Conversion, given: Mapping[str, object], fields: Mapping[str, str]) -> None:
    """Put the settings that are fields of a job."""
    for name, value in given.items():
        if name in fields:
            _put_field(found, name, fields[name], value)


def _put_field(found: Conversion, name: str, path: str, value: object) -> None:
    if path.startswith("environment.options.") and isinstance(value, list):
        if len(value) != 1:
            found.note(name, f"a job has one file, not {len(value)}. Join them, and set spec.{path}.")
            return
        value = value[0]
    if path == "algorithm.dynamicSampling.maxBatches" and value == 0:
        # verl's word for no limit.
        value = 1000
    if path == "tracking.loggers" and isinstance(value, str):
        value = [value]
    if value is not None:
        found.put(path, value)


def _put_kl(found: Conversion, given: Mapping[str, object]) -> None:
    if given.get(f"{ACTOR}.use_kl_loss"):
        found.put("algorithm.kl", {"in": "loss", "coefficient": given.get(f"{ACTOR}.kl_loss_coef", 0.001)})
    elif given.get("algorithm.use_kl_in_reward"):
        found.put("algorithm.kl", {"coefficient": given.get("algorithm.kl_ctrl.kl_coef", 0.001)})
    elif found.data["spec"]["algorithm"]["type"] != "dapo":
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


def _drop_unknown_fields(found: Conversion, given: Mapping[str, object], fields: Mapping[str, str]) -> None:
    """Drop fields that the algorithm does not have, such as those of a critic."""
    algorithm = found.data["spec"]["algorithm"]
    by_type = algorithms()
    section = by_type.get(algorithm["type"])
    if section is None:
        found.note(
            "algorithm.adv_estimator", f"{algorithm['type']!r} is no algorithm here. Known: {', '.join(by_type)}."
        )
        return
    names = {path.removeprefix("algorithm."): name for name, path in fields.items() if path.startswith("algorithm.")}
    names["kl"] = f"{ACTOR}.use_kl_loss" if given.get(f"{ACTOR}.use_kl_loss") else "algorithm.use_kl_in_reward"
    for unknown in [name for name in algorithm if name not in fields_by_alias(section)]:
        del algorithm[unknown]
        if (name := names.get(unknown)) in given and not str(name).startswith("critic."):
            found.note(str(name), f"the algorithm {algorithm['type']} does not use it.")


def _reward(given: Mapping[str, object]) -> str:
    path = given.get("custom_reward_function.path")
    if path:
        return f"verl:{path}:{given.get('custom_reward_function.name', 'compute_score')}"
    return "reward_model" if any(given.get(f"{name}.enable") is True for name in REWARD_MODELS) else "verl"


def _without_switches(given: Mapping[str, object]) -> Mapping[str, object]:
    """Leave out what decides whether verl has a reward model, and where: here it has GPUs of its own if it is named."""
    switches = {f"{name}.{switch}" for name in REWARD_MODELS for switch in ("enable", "enable_resource_pool")}
    return {name: value for name, value in given.items() if name not in switches}


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
