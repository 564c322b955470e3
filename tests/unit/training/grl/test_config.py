"""Conversion of GRL's configuration to a job: the documented keys and those that its code reads."""

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from support.agents import Counter
from support.models import model_without_weights
from turnmill.core.errors import SettingsError
from turnmill.environments.grl import register_agent
from turnmill.grl import AgentTrainer
from turnmill.jobs import JobError, parse_job
from turnmill.training.grl import config as grl_config
from turnmill.training.grl.config import agent_settings, job_data
from turnmill.training.verl.config import refused_verl_settings

# From the documentation of AgentTrainer, with a model and a number of steps.
DOCUMENTED_CONFIG = """
actor_rollout_ref: {model: {path: /models/small}}
trainer:
  total_epochs: 10
  validation_steps: 10
algorithm:
  adv_estimator: "gae"
rollout:
  train: ["sokobanAgent"]
  agent_group_num: 2
  agent_group_size: 2
  use_turn_scores: false
  reward_normalization: {grouping: batch, method: identity}
  rollout_filter_ratio: 1.0
sokobanAgent:
  agent_config:
    max_turns: 5
    max_actions_all_turns: 10
    max_actions_per_turn: 5
    max_tokens: 100
    format_penalty: 0.0
    enable_think: true
    action_separator: "||"
    system_prompt: "You are a helpful AI assistant that solves Sokoban puzzles."
    prompt: "You are solving the Sokoban puzzle."
  env_config:
    grid_vocab: {"@": player, "#": wall, "$": box, ".": target}
    action_lookup: {0: up, 1: down, 2: left, 3: right}
"""

# In the format of GRL's own files: lists with one entry per agent, beside verl's settings.
GRL_CONFIG = {
    "actor_rollout_ref": {
        "model": {"path": "/models/small"},
        "actor": {"optim": {"lr": 1e-6}, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "ppo_mini_batch_size": 32,
                  "ppo_micro_batch_size_per_gpu": 4, "entropy_coeff": 0.001},
        "rollout": {"temperature": 1, "tensor_model_parallel_size": 2, "prompt_length": 1},
    },
    "critic": {"optim": {"lr": 1e-5}},
    "data": {"max_prompt_length": 4096, "max_response_length": 400, "train_batch_size": 128},
    "algorithm": {"adv_estimator": "gae", "gamma": 1.0, "lam": 1.0, "kl_ctrl": {"kl_coef": 0.001, "type": "fixed"}},
    "trainer": {"total_training_steps": 200, "save_freq": -1, "test_freq": 10, "experiment_name": "Sokoban 0.5B",
                "n_gpus_per_node": 8, "validation_steps": 1},
    "rollout": {
        "training": ["simple"], "validation": ["simple", "large"], "agent_group_num": [8], "agent_group_size": [16],
        "validation_agent_group_num": [256, 256], "validation_agent_group_size": [1, 1], "truncation": "left",
        "rollout_filter_ratio": 1, "rollout_filter_type": "std", "show_tqdm": False, "num_env_threads": 0,
    },
    "simple": {"agent_type": "sokobanAgent", "agent_config": {"max_turns": 6}, "env_config": {"dim_room": [6, 6]}},
    "large": {"agent_type": "sokobanAgent", "agent_config": {"max_turns": 6}, "env_config": {"dim_room": [8, 8]}},
}  # fmt: skip


def test_the_documented_configuration_becomes_a_job(tmp_path: Path):
    file = tmp_path / "documented.yaml"
    file.write_text(DOCUMENTED_CONFIG)

    spec = AgentTrainer(config=file, reward_fn=None, train_dataset=None).job.spec

    agent = spec.grl_agent
    assert [(group.agent.name, group.size) for group in agent.training_groups] == [("sokobanAgent", 2)] * 2
    assert (spec.training.steps, agent.validation_steps, spec.algorithm.type) == (10, 10, "ppo")
    (sokoban,) = agent.agents
    assert (sokoban.agent_type, sokoban.agent_config.max_turns) == ("sokobanAgent", 5)
    assert sokoban.env_config["action_lookup"]["3"] == "right"


def test_a_configuration_in_grls_own_format_becomes_a_job():
    spec = AgentTrainer(config=OmegaConf.create(GRL_CONFIG)).job.spec

    agent, algorithm = spec.grl_agent, spec.algorithm
    assert sum(group.size for group in agent.training_groups) == 128
    assert [group.agent.name for group in agent.validation_groups] == ["simple"] * 256 + ["large"] * 256
    assert (algorithm.clip_ratio, algorithm.clip_ratio_high, algorithm.critic_learning_rate) == (0.2, 0.28, 1e-5)
    assert (algorithm.kl.coefficient, algorithm.gae_lambda) == (0.001, 1.0)
    assert (spec.training.steps, spec.training.checkpoint_every, spec.training.validation.every) == (200, 200, 10)
    # Four updates a step, of 32 trajectories each.
    assert algorithm.minibatch_tasks == 2
    assert spec.resources.train.gpus_per_node == 8
    assert spec.verl == {
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 2,
    }


@pytest.mark.parametrize(
    ("given", "coefficient"), [({"use_kl_in_reward": False}, 0), ({"use_kl_in_reward": True}, 0.001)]
)
def test_a_penalty_that_is_switched_off_has_the_coefficient_0(given: dict[str, bool], coefficient: float):
    config = GRL_CONFIG | {"algorithm": {"adv_estimator": "gae"} | given}

    assert AgentTrainer(config=config).job.spec.algorithm.kl.coefficient == coefficient


def test_a_filtered_step_is_one_mini_batch():
    config = GRL_CONFIG | {"rollout": GRL_CONFIG["rollout"] | {"rollout_filter_ratio": 0.25}}

    assert AgentTrainer(config=config).job.spec.algorithm.minibatch_tasks is None


@pytest.mark.parametrize(
    "played", [{}, {"training": ["large"]}, {"train": ["simple"], "validation": ["simple", "large"]}]
)
def test_grls_own_rollout_plays_the_agents_of_a_run(played: dict[str, Any]):
    config = changed(rollout={"agent_group_num": [2], "agent_group_size": [2]} | played)

    own, of_the_run = agent_settings(config), AgentTrainer(config=config).job.spec.grl_agent

    assert [agent.name for agent in own.agents] == [agent.name for agent in of_the_run.agents]
    assert own.training_groups == of_the_run.training_groups
    assert own.validation_groups == of_the_run.validation_groups


def changed(**parts: Any) -> dict[str, Any]:
    return {**GRL_CONFIG, **parts}


def test_settings_of_gae_are_ignored_for_an_estimator_without_a_critic():
    spec = AgentTrainer(config=changed(algorithm={"adv_estimator": "grpo", "lam": 1.0})).job.spec

    assert spec.algorithm.type == "grpo"


def test_verl_settings_with_other_conventions_are_converted():
    config = changed(algorithm={"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": False})
    assert AgentTrainer(config=config).job.spec.algorithm.normalise is False

    # verl's value is the first step in which the policy learns.
    for given, steps in ((0, 0), (1, 0), (5, 4)):
        config = changed(trainer={**GRL_CONFIG["trainer"], "critic_warmup": given})
        assert AgentTrainer(config=config).job.spec.algorithm.critic_warmup_steps == steps


def test_overrides_are_applied_last():
    spec = AgentTrainer(config=GRL_CONFIG, overrides=["training.steps=3", "resources.device=cpu"]).job.spec

    assert (spec.training.steps, spec.resources.device) == (3, "cpu")


def test_other_settings_of_an_agent_become_its_options():
    simple = {**GRL_CONFIG["simple"], "agent_config": {"max_turns": 2, "use_custom_prompt": True}}

    agent = AgentTrainer(config=changed(simple=simple)).job.spec.grl_agent

    assert agent.agents[0].agent_config.options == {"use_custom_prompt": True}


def test_a_registered_agent_is_written_into_the_job_by_its_import_path():
    register_agent("theirCounter")(Counter)

    agent = job_data(changed(simple={"agent_type": "theirCounter", "agent_config": {}}))["spec"]["agent"]

    assert agent["agents"][0]["agentType"] == "support.agents:Counter"


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        (changed(simple={"agent_type": "sokoban"}), KeyError, "sokobanAgent"),
        (changed(trainer={}), SettingsError, r"trainer\.total_training_steps: is missing"),
        (changed(rollout={"trainings": ["simple"]}), SettingsError, r"rollout\.trainings: there is no such setting"),
        (changed(rollout={"training": ["medium"]}), JobError, r"spec\.agent\.training: .*must name agents"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(config: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        AgentTrainer(config=config)


def test_an_agent_that_cannot_work_is_reported_when_the_job_is_parsed():
    rollout = {**GRL_CONFIG["rollout"], "agent_group_num": [8, 8]}

    data = job_data(changed(rollout=rollout))

    assert "minibatchTasks" not in data["spec"]["algorithm"]
    with pytest.raises(JobError, match=r"spec\.agent\.agentGroupNum: "):
        parse_job(data)


def test_a_data_set_is_refused():
    with pytest.raises(SettingsError, match="agents bring their own tasks"):
        AgentTrainer(config=GRL_CONFIG, train_dataset=[1])


def test_a_job_that_cannot_run_is_refused_before_anything_starts(tmp_path: Path):
    (tmp_path / "documented.yaml").write_text(DOCUMENTED_CONFIG)
    trainer = AgentTrainer(config=tmp_path / "documented.yaml", output=tmp_path / "run")

    with pytest.raises(JobError, match=r"spec\.model\.path: '/models/small' is no folder"):
        trainer.init_workers()

    assert not (tmp_path / "run").exists()


DATA = Path(__file__).with_name("data")
OTHER_SETTINGS = {
    "actor_rollout_ref.actor.kl_loss_coef",
    "actor_rollout_ref.actor.kl_loss_type",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.actor.use_kl_loss",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
    "actor_rollout_ref.rollout.enforce_eager",
    "actor_rollout_ref.rollout.free_cache_engine",
    "actor_rollout_ref.rollout.gpu_memory_utilization",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
    "actor_rollout_ref.rollout.max_num_batched_tokens",
    "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "algorithm.kl_penalty",
    "critic.ppo_micro_batch_size_per_gpu",
}
"""What GRL's files set of verl's own, without a field in a job."""
PINNED = Path(grl_config.__file__).with_name("verl_0_4_1.json")


def composed() -> Any:
    """Return GRL's files over the defaults of the verl that it pins, as its script composes them."""
    pinned = OmegaConf.create(nested_of(json.loads(PINNED.read_text())))
    return OmegaConf.merge(pinned, OmegaConf.load(DATA / "agents.yaml"), OmegaConf.load(DATA / "base.yaml"))


def nested_of(flat: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *sections, last = name.split(".")
        node = nested
        for section in sections:
            node = node.setdefault(section, {})
        node[last] = value
    return nested


@pytest.mark.feature("GRL", "its own configuration files")
@pytest.mark.parametrize("config", [DATA / "base.yaml", composed()], ids=["file", "composed"])
def test_the_files_of_grl_are_read_as_they_are(config, tmp_path):
    job = AgentTrainer(config=config, overrides=[f"model.path={model_without_weights(tmp_path)}"]).job

    agent, algorithm = job.spec.grl_agent, job.spec.trajectory_algorithm
    assert [each.name for each in agent.agents] == ["simpleSokobanAgent", "largeSokobanAgent"]
    assert [(group.agent.name, group.size) for group in agent.training_groups] == [("simpleSokobanAgent", 16)] * 8
    assert (agent.validation_seed, agent.rollout_filter_ratio, agent.max_prompt_length) == (123, 0.25, 4096)
    assert (algorithm.type, algorithm.clip_ratio_high, algorithm.adam_betas) == ("ppo", 0.28, (0.9, 0.999))
    assert (job.spec.kl.coefficient, job.spec.kl.applied_in, job.spec.training.steps) == (0.001, "reward", 200)
    assert job.spec.training.validation.every == 10
    # What has no field in a job is a setting of the present verl; nothing of the pinned verl's defaults is left.
    assert refused_verl_settings(job.spec.verl) == []
    assert job.spec.verl.keys() <= OTHER_SETTINGS


@pytest.mark.feature("GRL", "its own configuration files")
def test_every_agent_of_grls_files_is_known():
    blocks = OmegaConf.load(DATA / "agents.yaml")

    for name in blocks:
        config = OmegaConf.merge(
            {"rollout": {"training": [name]}, "trainer": {"total_training_steps": 1}}, {name: blocks[name]}
        )
        (agent,) = job_data(config)["spec"]["agent"]["agents"]
        assert agent["name"] == name


def test_a_missing_file_among_the_defaults_is_an_error(tmp_path):
    file = tmp_path / "base.yaml"
    file.write_text("defaults: [agents, _self_]\n")

    with pytest.raises(SettingsError, match=r"defaults: agents is no file beside .* Put agents.yaml there"):
        job_data(file)


@pytest.mark.parametrize(("name", "value"), [("model.path", "/other"), ("optim.betas", [0.8, 0.9])])
def test_a_critic_with_settings_of_its_own_is_refused(name, value):
    config = OmegaConf.create(GRL_CONFIG)
    OmegaConf.update(config, f"critic.{name}", value)

    with pytest.raises(SettingsError, match=r"critic: its model\.path and optim\.betas must be those of the policy"):
        job_data(config)


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b'rollout: {train: ["a\0b"]}', r"is not valid YAML: unacceptable character #x0000"),
        (b"rollout: [1", r"is not valid YAML: while parsing a flow sequence"),
        (b"rollout: \xff", r"is not valid YAML: .*can't decode"),
        (b"- 1", r"has no sections"),
        (None, r"cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_in_a_sentence(content, rule, tmp_path):
    file = tmp_path / "grl.yaml"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(SettingsError, match=rf"grl\.yaml {rule}"):
        AgentTrainer(config=file)


def test_a_configuration_that_only_validates_has_no_steps():
    config = OmegaConf.create(GRL_CONFIG)
    OmegaConf.update(config, "trainer.val_only", True, force_add=True)

    assert AgentTrainer(config=config).job.spec.training.steps == 0


class DummyRewardManager:
    """GRL's reward function, which returns the scores of the agents."""


def decide(batch: Any) -> None:
    """A reward function at the top of a module."""


@pytest.mark.feature("GRL", "a reward function of your own")
def test_a_reward_function_other_than_grls_is_that_of_the_job():
    agent = AgentTrainer(config=GRL_CONFIG, reward_fn=decide, val_reward_fn=DummyRewardManager()).job.spec.grl_agent

    assert agent.reward_function == f"{__name__}:decide"
    assert agent.validation_reward_function is None


def test_a_reward_function_that_other_processes_cannot_import_is_refused():
    with pytest.raises(
        SettingsError, match=r"val_reward_fn: the processes of a run import it, .* Define it there with"
    ):
        AgentTrainer(config=GRL_CONFIG, val_reward_fn=lambda batch: 1.0)
