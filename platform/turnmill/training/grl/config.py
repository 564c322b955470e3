"""Conversion of GRL's configuration, as in its YAML files, to a job."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from turnmill.core.errors import SettingsError
from turnmill.environments.grl.registry import path_of
from turnmill.jobs import API_VERSION, KIND
from turnmill.jobs.algorithm import AlgorithmSettings
from turnmill.jobs.grl_agent import AgentConfig, GrlAgent
from turnmill.jobs.settings import Settings
from turnmill.jobs.values import fields_by_alias, sections_in, tag_of
from turnmill.training.grl import env_config
from turnmill.training.grl.config_files import with_defaults

Configuration: TypeAlias = Mapping[str, object] | DictConfig | Path | str
"""A GRL configuration: a mapping, an OmegaConf configuration, or the path of a YAML file."""

Block: TypeAlias = dict[str, Any]
"""A section of a job or of a configuration, not validated."""

ESTIMATORS = {"gae": "ppo"}
"""GRL's estimators that have another name in a job."""

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
FIELDS = {
    "actor_rollout_ref.model.path": "model.path",
    f"{ACTOR}.optim.lr": "algorithm.actorLearningRate",
    f"{ACTOR}.optim.weight_decay": "algorithm.weightDecay",
    f"{ACTOR}.optim.betas": "algorithm.adamBetas",
    f"{ACTOR}.clip_ratio": "algorithm.clipRatio",
    f"{ACTOR}.clip_ratio_low": "algorithm.clipRatio",
    f"{ACTOR}.clip_ratio_high": "algorithm.clipRatioHigh",
    f"{ACTOR}.entropy_coeff": "algorithm.entropyCoefficient",
    f"{ACTOR}.grad_clip": "algorithm.gradientClip",
    f"{ACTOR}.ppo_epochs": "algorithm.epochs",
    "critic.optim.lr": "algorithm.criticLearningRate",
    "critic.cliprange_value": "algorithm.valueClip",
    "algorithm.gamma": "algorithm.gamma",
    "algorithm.lam": "algorithm.gaeLambda",
    "algorithm.norm_adv_by_std_in_grpo": "algorithm.normalise",
    "algorithm.kl_ctrl.kl_coef": "algorithm.kl.coefficient",
    "algorithm.kl_ctrl.type": "algorithm.kl.type",
    "data.max_prompt_length": "agent.maxPromptLength",
    "data.max_response_length": "agent.maxResponseLength",
    f"{ROLLOUT}.temperature": "agent.temperature",
    "trainer.validation_steps": "agent.validationSteps",
    "trainer.total_training_steps": "training.steps",
    "trainer.project_name": "tracking.project",
    "trainer.logger": "tracking.loggers",
    "trainer.nnodes": "resources.train.nodes",
    "trainer.n_gpus_per_node": "resources.train.gpusPerNode",
}
"""Fields of a job, by the names of verl and GRL."""

WITHOUT_EFFECT = frozenset(
    {
        *("data.train_batch_size", "data.val_batch_size", "data.train_files", "data.val_files", "rollout.show_tqdm"),
        *("trainer.val_before_train", "trainer.default_local_dir", "trainer.experiment_name", "trainer.total_epochs"),
        *("trainer.save_freq", "trainer.test_freq", "trainer.resume_mode", "algorithm.adv_estimator"),
        *("algorithm.use_kl_in_reward", f"{ACTOR}.ppo_mini_batch_size", "critic.ppo_mini_batch_size"),
        *(f"{ROLLOUT}.prompt_length", f"{ROLLOUT}.response_length", f"{ROLLOUT}.max_model_len", f"{ROLLOUT}.n"),
        *(f"{ROLLOUT}.name", f"{ROLLOUT}.mode", "trainer.critic_warmup", "trainer.val_only"),
        # `agent.validationSampling` decides how validations sample.
        *(f"{ROLLOUT}.val_kwargs.do_sample", f"{ROLLOUT}.val_kwargs.temperature"),
        # The rollout's own settings are under `rollout`; GRL reads these nowhere.
        *(f"{ROLLOUT}.rollout_filter_ratio", f"{ROLLOUT}.rollout_filter_type", f"{ACTOR}.use_ref"),
        *(f"{ACTOR}.micro_batch_size_per_gpu", "trainer.taskrunner_num_cpus", "system.CUDA_VISIBLE_DEVICES"),
        # The critic is the policy's initial model, with the policy's betas.
        *("critic.model.path", "critic.optim.betas"),
        # Critics always fill micro-batches up to a number of tokens.
        "critic.ppo_micro_batch_size_per_gpu",
    }
)
"""Names that are read elsewhere in this module, or that have no effect without a data set."""


def job_data(config: Configuration) -> Block:
    """Convert a configuration to the data of a job, which is not validated.

    Settings without a field in a job go to `spec.verl` by their own names. A configuration that already is a job is
    returned unchanged. Raises SettingsError for an unknown setting under `rollout`, or without a number of steps.
    """
    read = with_defaults(Path(config)) if isinstance(config, (str, Path)) else OmegaConf.create(config)
    plain: Block = OmegaConf.to_container(read, resolve=True)
    if plain.get("kind") == KIND:
        return plain
    rollout = plain.pop("rollout", {})
    blocks = {name: plain.pop(name) for name in [*plain] if _is_agent(plain[name])}
    if (played := _played(rollout)) and played <= blocks.keys():
        blocks = {name: block for name, block in blocks.items() if name in played}
    # Values beside the sections are variables, which sections refer to.
    flat = dict(_flat({name: section for name, section in plain.items() if isinstance(section, Mapping)}))
    if not _same_for_both(flat, "model.path") or not _same_for_both(flat, "optim.betas"):
        raise SettingsError("critic: its model.path and optim.betas must be those of the policy. Make them the same.")
    unchosen = _unchosen(flat)
    spec: Block = {"agent": _agent(blocks, rollout), "algorithm": _algorithm(flat), "verl": {}}
    for name, value in flat.items():
        if name in FIELDS:
            _put(spec, FIELDS[name], value)
        elif name not in WITHOUT_EFFECT and (name not in unchosen or unchosen[name] != value):
            spec["verl"][name] = value
    spec["algorithm"] = _known(spec["algorithm"])
    spec["training"] = _training(spec.get("training", {}), flat)
    if (minibatch := flat.get(f"{ACTOR}.ppo_mini_batch_size")) is not None:
        _size_minibatches(spec, minibatch)
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": _as_name(str(flat.get("trainer.experiment_name", "grl")))},
        "spec": spec,
    }


def agent_settings(config: Configuration) -> GrlAgent:
    """Return the agents of a configuration, or of a job. Raises SettingsError for an invalid one."""
    read = with_defaults(Path(config)) if isinstance(config, (str, Path)) else OmegaConf.create(config)
    plain: Block = OmegaConf.to_container(read, resolve=True)
    if plain.get("kind") == KIND:
        agent = plain["spec"]["agent"]
    else:
        blocks = {name: block for name, block in plain.items() if _is_agent(block)}
        played = _played(plain.get("rollout", {}))
        agent = _agent(
            {name: blocks[name] for name in blocks if not played or name in played}, plain.get("rollout", {})
        )
        for name in ("max_prompt_length", "max_response_length"):
            # GRL's rollout reads them beside the sections.
            if (length := plain.get("data", {}).get(name, plain.get(name))) is not None:
                agent[to_camel(name)] = length
    try:
        return GrlAgent.model_validate(agent, by_alias=True, by_name=False)
    except ValidationError as error:
        raise SettingsError(f"rollout: {error}") from None


@cache
def _pinned_defaults() -> Block:
    """Return the defaults of the verl that GRL pins, by dotted names."""
    defaults: Block = json.loads(Path(__file__).with_name("verl_0_4_1.json").read_text())
    return defaults


def _unchosen(flat: Block) -> Block:
    """Return the values that nobody has chosen: the pinned defaults, if the configuration was composed over them."""
    defaults = _pinned_defaults()
    return defaults if sum(name in flat for name in defaults) > len(defaults) / 2 else {}


def _played(rollout: Block) -> set[str]:
    """Return the agents that a configuration plays; empty if it names none, which means all."""
    given = [rollout.get(name) or [] for name in ("train", "training", "validation")]
    return {name for names in given for name in ([names] if isinstance(names, str) else names)}


def _same_for_both(flat: Block, name: str) -> bool:
    """Return whether the critic has the policy's value of a setting, or none."""
    policy = f"actor_rollout_ref.{'' if name.startswith('model') else 'actor.'}{name}"
    return flat.get(f"critic.{name}") in (None, flat.get(policy), _pinned_defaults().get(f"critic.{name}"))


def _is_agent(block: object) -> bool:
    return isinstance(block, Mapping) and any(name in block for name in ("agent_type", "agent_config", "env_config"))


def _agent(blocks: Block, rollout: Block) -> Block:
    """Return the agent of a job; single numbers of groups become lists."""
    fields = fields_by_alias(GrlAgent)
    agent: Block = {"type": "grl", "agents": [_named(name, block) for name, block in blocks.items()]}
    for name, value in rollout.items():
        field = to_camel(name)
        if field not in fields and f"rollout.{name}" not in WITHOUT_EFFECT:
            raise SettingsError(f"rollout.{name}: there is no such setting. Known: {', '.join(sorted(fields))}.")
        if field in ("agentGroupNum", "agentGroupSize", "validationAgentGroupNum", "validationAgentGroupSize"):
            value = [value] if isinstance(value, int) else value
        if field in fields:
            agent[field] = value
    return agent


def _named(name: str, block: Block) -> Block:
    known = AgentConfig.model_fields
    given = dict(block.get("agent_config") or {})
    config = {to_camel(field): value for field, value in given.items() if field in known}
    if own := {field: value for field, value in given.items() if field not in known}:
        config["options"] = config.get("options", {}) | own
    agent_type = str(block.get("agent_type", name))
    return {
        "name": name,
        "agentType": path_of(agent_type),
        "agentConfig": config,
        # Keys of mappings are text in a job.
        "envConfig": _with_text_keys(env_config.here(agent_type, block.get("env_config") or {})),
    }


def _with_text_keys(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _with_text_keys(inner) for key, inner in value.items()}
    return value


def _algorithm(flat: Block) -> Block:
    estimator = str(flat.get("algorithm.adv_estimator", "gae"))
    algorithm: Block = {"type": ESTIMATORS.get(estimator, estimator)}
    if flat.get("algorithm.use_kl_in_reward") is False:
        algorithm["kl"] = {"coefficient": 0}
    # verl names the first step in which the policy learns, and 0 means the first one too.
    if (warmup := flat.get("trainer.critic_warmup")) is not None:
        algorithm["criticWarmupSteps"] = max(0, warmup - 1)
    return algorithm


def _known(algorithm: Block) -> Block:
    """Drop settings that the algorithm has no fields for, such as those of a critic."""
    by_type: dict[str, type[Settings]] = {tag_of(section): section for section in sections_in(AlgorithmSettings)}
    section = by_type.get(algorithm["type"])
    return algorithm if section is None else {k: v for k, v in algorithm.items() if k in fields_by_alias(section)}


def _training(training: Block, flat: Block) -> Block:
    if flat.get("trainer.val_only") is True:
        return training | {"steps": 0}
    # Without a data set an epoch is one step.
    steps = training.setdefault("steps", flat.get("trainer.total_epochs"))
    if steps is None:
        raise SettingsError(
            "trainer.total_training_steps: is missing, and no data set determines it. Set it to the number of steps."
        )
    save, test = flat.get("trainer.save_freq"), flat.get("trainer.test_freq")
    if save is not None:
        training["checkpointEvery"] = save if save > 0 else steps
    if test is not None and test > 0:
        training["validation"] = {"every": test}
    return training


def _size_minibatches(spec: Block, minibatch: int) -> None:
    """Set the groups per update from the trajectories per update: a step has as many updates as in GRL."""
    try:
        agent = GrlAgent.model_validate(spec["agent"], by_alias=True, by_name=False)
        groups = agent.training_groups
    except (ValueError, KeyError):
        # Parsing the job reports the problem of its agent.
        return
    kept = max(1, int(agent.rollout_filter_ratio * len(groups)))
    trajectories = kept * sum(group.size for group in groups) / len(groups)
    updates = max(1, round(trajectories / minibatch))
    if updates > 1:
        spec["algorithm"]["minibatchTasks"] = max(1, len(groups) // updates)


def _flat(node: Block, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in node.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _put(data: Block, path: str, value: object) -> None:
    *sections, name = path.split(".")
    for section in sections:
        data = data.setdefault(section, {})
    data[name] = value


def _as_name(text: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-")
    return name if name[:1].isalpha() else f"grl-{name}"[:40].strip("-")
