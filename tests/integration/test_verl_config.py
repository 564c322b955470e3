import ast
import fnmatch
import importlib.util
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from transformers import Qwen2Config
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo.core_algos import AdaptiveKLController, AdvantageEstimator, get_kl_controller
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
from verl.utils.config import omega_conf_to_dataclass, validate_config

import turnmill
from support.models import model_without_weights
from turnmill.cli import checks
from turnmill.core.errors import SettingsError
from turnmill.jobs import AgentTrainingJob, load_job
from turnmill.training.agent_kinds import agent_kind
from turnmill.training.dynamic_sampling import FilteringStepBuffer
from turnmill.training.replay_buffers import StepReplayBuffer
from turnmill.training.verl import known_settings
from turnmill.training.verl.config import build_verl_config, compose_defaults, refused_verl_settings
from turnmill.training.verl.ineffective_settings import ONLY_WITH
from turnmill.training.verl.known_settings import unknown_names
from turnmill.training.verl.megatron_config import require_packages

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"
ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
SECTIONS = (
    ACTOR,
    "actor_rollout_ref.ref.fsdp_config",
    ROLLOUT,
    MODEL,
    f"{ROLLOUT}.checkpoint_engine",
    "critic",
    "critic.model",
    "algorithm",
    "distillation",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return model_without_weights(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def defaults():
    return compose_defaults()


def example(name: str, model: Path, *overrides: str) -> AgentTrainingJob:
    instead = [] if name.endswith("-cpu") else [f"spec.model.path={model}"]
    return load_job(EXAMPLES / f"{name}.yaml", [*instead, *overrides])


def config_of(job: AgentTrainingJob, model: Path, device: str):
    config = build_verl_config(job, model=model, run_dir=Path("run"), device=device)
    OmegaConf.resolve(config)
    return config


def require_verl_accepts(config) -> None:
    use_critic = need_critic(config)
    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=use_critic)
    for section in SECTIONS if use_critic else [s for s in SECTIONS if not s.startswith("critic")]:
        assert omega_conf_to_dataclass(OmegaConf.select(config, section)) is not None


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_verl_accepts_the_examples(file, model):
    job = example(file.stem, model)

    require_verl_accepts(config_of(job, model, job.spec.resources.device))


@pytest.mark.parametrize("name", ["babyai-goto-gpu", "tool-math-gpu", "webshop-gigpo-gpu"])
def test_verl_accepts_the_gpu_examples_on_a_cpu(name, model):
    require_verl_accepts(config_of(example(name, model), model, "cpu"))


def test_everything_is_computed_in_float32_on_a_cpu(model):
    config = config_of(example("babyai-goto-cpu", model), model, "cpu")

    engines = [
        omega_conf_to_dataclass(config.actor_rollout_ref.actor).fsdp_config,
        omega_conf_to_dataclass(OmegaConf.select(config, "actor_rollout_ref.ref.fsdp_config")),
        omega_conf_to_dataclass(config.critic).fsdp,
    ]
    assert [engine.dtype for engine in engines] == ["float32"] * 3
    assert [engine.mixed_precision["param_dtype"] for engine in engines] == ["fp32"] * 3
    assert not any(engine.use_torch_compile for engine in engines)
    assert config.actor_rollout_ref.rollout.dtype == "float32"


@pytest.mark.parametrize(
    ("algorithm", "estimator", "critic"),
    [
        ("ppo", "gae", True),
        ("grpo", "grpo", False),
        ("rloo", "rloo", False),
        ("reinforce_plus_plus", "reinforce_plus_plus", False),
        ("reinforce_plus_plus_baseline", "reinforce_plus_plus_baseline", False),
        ("dapo", "grpo", False),
    ],
)
@pytest.mark.parametrize("kind", ["tool-arithmetic-cpu", "babyai-goto-gigpo-cpu"])
def test_verl_accepts_every_algorithm(kind, algorithm, estimator, critic, model):
    job = example(kind, model, f"spec.algorithm={{type: {algorithm}, clipRatioHigh: 0.3}}")

    config = config_of(job, model, "cpu")

    require_verl_accepts(config)
    assert need_critic(config) is critic
    assert need_reference_policy(config) is (algorithm != "dapo")
    assert config.algorithm.adv_estimator == AdvantageEstimator(estimator)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.2, 0.3)
    assert config.actor_rollout_ref.rollout.n == 8


def test_ppo_may_delay_policy_updates_for_critic_warm_up(model):
    algorithm = "spec.algorithm={type: ppo, criticWarmupSteps: 5, gamma: 0.9, gaeLambda: 0.8, minibatchTasks: 4}"

    config = config_of(example("tool-arithmetic-cpu", model, algorithm), model, "cpu")

    # verl names the first step in which the policy learns.
    assert config.trainer.critic_warmup == 6
    assert (config.algorithm.gamma, config.algorithm.lam, config.critic.ppo_mini_batch_size) == (0.9, 0.8, 4)


def test_verl_accepts_the_lora_settings(model):
    lora = "spec.model.lora={rank: 8, alpha: 16, targetModules: [q_proj, v_proj]}"

    config = config_of(example("babyai-goto-cpu", model, lora), model, "cpu")

    validate_config(config, use_reference_policy=True, use_critic=True)
    converted = omega_conf_to_dataclass(OmegaConf.select(config, MODEL))
    assert (converted.lora_rank, converted.lora_alpha) == (8, 16)
    assert list(converted.target_modules) == ["q_proj", "v_proj"]
    assert omega_conf_to_dataclass(config.critic.model).lora_rank == 0


@pytest.mark.parametrize(
    ("name", "mode", "merged"),
    [
        ("babyai-goto-cpu", "sync", False),
        ("babyai-goto-cpu", "colocate_async", False),
        ("babyai-goto-separate-cpu", "separate_async", True),
    ],
)
def test_adapters_are_merged_into_the_weights_that_are_sent_over_the_network(model, name, mode, merged):
    changes = ("spec.model.lora={rank: 8, alpha: 16}", f"spec.training.mode={mode}")
    config = config_of(example(name, model, *changes), model, "cuda")

    assert omega_conf_to_dataclass(OmegaConf.select(config, MODEL)).lora["merge"] is merged


def test_the_settings_of_the_paper_reach_the_dataclasses_of_verl(model):
    config = config_of(example("babyai-goto-gpu", model, "training.seed=7"), model, "cuda")

    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    critic = omega_conf_to_dataclass(config.critic)
    assert (actor.ppo_mini_batch_size, actor.clip_ratio_low, actor.clip_ratio_high) == (128, 0.2, 0.2)
    assert (actor.optim.lr, actor.entropy_coeff) == (1e-6, 0.001)
    assert (critic.ppo_mini_batch_size, critic.cliprange_value, critic.optim.lr) == (128, 0.5, 1e-5)
    assert [role.engine.seed for role in (actor, critic)] == [7, 7]
    assert config.algorithm.kl_ctrl.kl_coef == 0.001
    assert config.actor_rollout_ref.rollout.max_model_len == 1024 + 512


@pytest.mark.feature("Verlog", "an adaptive coefficient")
def test_an_adaptive_coefficient_reaches_the_controller_of_verl(model):
    kl = "spec.algorithm.kl={type: adaptive, coefficient: 0.02, target: 0.3, horizon: 500}"

    config = config_of(example("babyai-goto-cpu", model, kl), model, "cpu")

    controller = get_kl_controller(omega_conf_to_dataclass(config.algorithm).kl_ctrl)
    assert isinstance(controller, AdaptiveKLController)
    assert (controller.value, controller.target, controller.horizon) == (0.02, 0.3, 500)
    assert config.algorithm.use_kl_in_reward is True


@pytest.mark.feature("verl's multi-turn", "the KL penalty in the loss")
@pytest.mark.parametrize("name", ["babyai-goto-cpu", "tool-arithmetic-cpu"])
def test_a_kl_penalty_is_in_the_reward_or_in_the_loss(name, model):
    in_reward = config_of(example(name, model, "spec.algorithm.kl={coefficient: 0.02}"), model, "cpu")
    in_loss = config_of(example(name, model, "spec.algorithm.kl={coefficient: 0.02, in: loss}"), model, "cpu")

    actor = omega_conf_to_dataclass(in_loss.actor_rollout_ref.actor)
    assert (actor.use_kl_loss, actor.kl_loss_coef, actor.kl_loss_type) == (True, 0.02, "low_var_kl")
    assert in_loss.algorithm.use_kl_in_reward is False
    assert need_reference_policy(in_loss)
    assert (in_reward.algorithm.use_kl_in_reward, in_reward.actor_rollout_ref.actor.use_kl_loss) == (True, False)


def test_the_optimizers_are_those_of_verl_unless_the_job_says_otherwise(model, defaults):
    other = ("spec.algorithm.adamBetas=[0.8, 0.9]", "spec.algorithm.weightDecay=0.2")
    job = example("babyai-goto-gpu", model)

    for section in (ACTOR, "critic"):
        default = OmegaConf.select(defaults, section).optim
        optim = OmegaConf.select(config_of(job, model, "cuda"), section).optim
        assert (list(optim.betas), optim.weight_decay) == (list(default.betas), default.weight_decay)
        changed = OmegaConf.select(config_of(example("babyai-goto-gpu", model, *other), model, "cuda"), section).optim
        assert (list(changed.betas), changed.weight_decay) == ([0.8, 0.9], 0.2)


def test_groups_of_trajectories_reach_the_dataclasses_of_verl(model):
    config = config_of(example("tool-math-gpu", model), model, "cuda")

    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    assert (actor.ppo_mini_batch_size, actor.loss_agg_mode) == (128, "token-mean")
    assert (rollout.n, rollout.max_model_len) == (16, 1024 + 3072)
    assert config.algorithm.adv_estimator == "grpo"
    assert config.data.train_batch_size == 128
    assert not need_reference_policy(config)


@pytest.mark.parametrize(
    ("name", "device", "backend"),
    [("babyai-goto-separate-cpu", "cpu", "gloo"), ("babyai-goto-h100-a40", "cuda", "nccl")],
)
def test_separate_rollout_resources_reach_the_dataclasses_of_verl(name, device, backend, model):
    config = config_of(example(name, model), model, device)

    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    assert config.trainer.v1.trainer_mode == "separate_async"
    assert config.actor_rollout_ref.hybrid_engine is False
    assert (rollout.nnodes, rollout.n_gpus_per_node) == ((1, 1) if device == "cpu" else (8, 1))
    assert rollout.checkpoint_engine.backend == backend
    assert rollout.checkpoint_engine.engine_kwargs["nccl"]["rebuild_group"] is True


def test_the_gpus_of_one_engine_are_on_one_node(model):
    setting = f"spec.verl={{{ROLLOUT}.tensor_model_parallel_size: 2}}"

    rollout = config_of(example("babyai-goto-h100-a40", model, setting), model, "cuda").actor_rollout_ref.rollout

    assert (rollout.nnodes, rollout.n_gpus_per_node, rollout.tensor_model_parallel_size) == (8, 2, 2)


@pytest.mark.parametrize("kind", ["babyai-goto-cpu", "babyai-goto-gigpo-cpu", "tool-arithmetic-cpu", "sokoban-grl-cpu"])
@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_every_trainer_of_verl_accepts_every_agent_type(kind, mode, model, tmp_path):
    job = example(kind, model, f"spec.training.mode={mode}")
    config = build_verl_config(job, model=model, run_dir=tmp_path, device="cpu")
    OmegaConf.set_struct(config, False)
    OmegaConf.resolve(config)
    minibatch = config.actor_rollout_ref.actor.ppo_mini_batch_size
    trainer_class = agent_kind(job.spec.agent).trainer_class(job)

    trainer = trainer_class(config)

    assert isinstance(trainer, TRAINER_REGISTRY[mode])
    assert isinstance(trainer.replay_buffer, StepReplayBuffer)
    assert config.actor_rollout_ref.actor.ppo_mini_batch_size == minibatch


@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
def test_dynamic_sampling_replaces_the_replay_buffer_in_every_mode(mode, model, tmp_path):
    job = example("tool-arithmetic-dapo-cpu", model, f"spec.training.mode={mode}")
    config = build_verl_config(job, model=model, run_dir=tmp_path, device="cpu")
    OmegaConf.set_struct(config, False)
    OmegaConf.resolve(config)

    buffer = agent_kind(job.spec.agent).trainer_class(job)(config).replay_buffer

    assert type(buffer) is FilteringStepBuffer
    assert buffer.sampler_kwargs["max_batches"] == 3


@pytest.mark.parametrize(("device", "in_parts"), [("cpu", False), ("cuda", True)])
def test_engines_without_a_gpu_read_prompts_whole(device, in_parts, model):
    rollout = config_of(example("sokoban-grl-cpu", model), model, device).actor_rollout_ref.rollout

    assert rollout.enable_chunked_prefill is in_parts
    # Else no prompt of the full length would ever be read.
    assert rollout.max_num_batched_tokens >= rollout.max_model_len


def test_reading_prompts_whole_is_needed():
    """vLLM moves a seeded request's generator back after each part of its prompt, which torch cannot on a CPU."""
    # Found without an import, which takes seconds.
    vllm = importlib.util.find_spec("vllm")
    assert vllm is not None
    assert vllm.submodule_search_locations
    runner = Path(vllm.submodule_search_locations[0]) / "v1" / "worker" / "gpu_model_runner.py"

    assert "gen.set_offset(gen.get_offset() - 4)" in runner.read_text()
    with pytest.raises(RuntimeError, match="CPU Generator does not use offset"):
        torch.Generator().get_offset()


@pytest.mark.feature("verl-tool", "several samples per validation task")
def test_verl_plays_each_task_of_a_validation_as_often_as_the_job_says(model):
    jobs = [example("tool-arithmetic-cpu", model, *more) for more in ((), ("training.validation.samples=4",))]

    assert [config_of(job, model, "cpu").actor_rollout_ref.rollout.val_kwargs.n for job in jobs] == [1, 4]


@pytest.mark.parametrize(("sampling", "temperature"), [("greedy", 0), ("training", 0.7)])
def test_validations_of_grl_agents_are_greedy_by_default(sampling, temperature, model):
    job = example("sokoban-grl-cpu", model, f"agent.validationSampling={sampling}", "agent.temperature=0.7")

    rollout = config_of(job, model, "cpu").actor_rollout_ref.rollout

    assert (rollout.val_kwargs.temperature, rollout.val_kwargs.do_sample) == (temperature, sampling == "training")
    # Each group has its own size.
    assert (rollout.n, rollout.temperature, rollout.max_model_len) == (1, 0.7, 768 + 28)


def test_a_step_trains_on_the_rows_requested_for_it(model, tmp_path):
    job = example("babyai-goto-cpu", model, "spec.training.mode=colocate_async")
    config = build_verl_config(job, model=model, run_dir=tmp_path, device="cpu")
    OmegaConf.set_struct(config, False)
    OmegaConf.resolve(config)
    buffer = agent_kind(job.spec.agent).trainer_class(job)(config).replay_buffer
    buffer.prompt_global_steps["train"] = {"early": 2, "this": 3, "broken": 3, "late": 4, "on its way": 3}
    buffer.finished_keys["train"] = {"early", "this", "late"}
    buffer.failure_keys["train"] = {"broken"}
    buffer.step = 3

    ready = buffer._sampleable_terminal_keys("train", buffer._terminal_eviction_reasons(3, "train"))

    assert ready == {"this", "broken"}


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ("train.offload=optimizer", {f"{ACTOR}.fsdp_config.optimizer_offload": True,
                                     f"{ACTOR}.fsdp_config.param_offload": False,
                                     "critic.fsdp.optimizer_offload": True}),
        ("train.offload=all", {f"{ACTOR}.fsdp_config.param_offload": True, "critic.fsdp.param_offload": True}),
        ("train.microBatchTokens=9000", {f"{ACTOR}.ppo_max_token_len_per_gpu": 9000,
                                         "critic.ppo_max_token_len_per_gpu": 9000,
                                         f"{ROLLOUT}.log_prob_max_token_len_per_gpu": 9000}),
        ("train.chunkedLogits=false", {f"{MODEL}.use_fused_kernels": False}),
        ("rollout.gpuMemoryShare=0.3", {f"{ROLLOUT}.gpu_memory_utilization": 0.3}),
        ("rollout.maxSequences=64", {f"{ROLLOUT}.max_num_seqs": 64}),
        ("rollout.dtype=float16", {f"{ROLLOUT}.dtype": "float16"}),
        ("rollout.tensorParallel=4", {f"{ROLLOUT}.tensor_model_parallel_size": 4}),
        ("train.gpusPerNode=4", {f"{ROLLOUT}.gpu_memory_utilization": 0.5, f"{ROLLOUT}.dtype": "bfloat16"}),
    ],
)  # fmt: skip
def test_the_resources_of_a_job_reach_the_dataclasses_of_verl(settings, names, model):
    config = config_of(example("babyai-goto-gpu", model, f"resources.{settings}"), model, "cuda")

    require_verl_accepts(config)
    assert {name: OmegaConf.select(config, name) for name in names} == names


MEGATRON = "resources.train={engine: megatron, nodes: 2, gpusPerNode: 8, tensorParallel: 4, pipelineParallel: 2, %s}"


@pytest.mark.parametrize("name", ["babyai-goto-gpu", "tool-math-gpu", "sokoban-grl-gpu", "webshop-gigpo-gpu"])
def test_verl_resolves_megatron_for_every_kind_of_agent(name, model):
    job = example(name, model, MEGATRON % "offload: optimizer", "training.seed=7")
    config = build_verl_config(job, model=model, run_dir=Path("run"), device="cuda")

    settings = OmegaConf.to_container(config)
    del settings["turnmill"]
    assert unknown_names(compose_defaults("megatron"), settings) == []
    OmegaConf.resolve(config)
    use_critic = need_critic(config)
    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=use_critic)
    sections = (ACTOR, "actor_rollout_ref.ref.megatron", ROLLOUT, MODEL, *(("critic",) if use_critic else ()))
    built = {section: omega_conf_to_dataclass(OmegaConf.select(config, section)) for section in sections}
    policy, reference = built[ACTOR].engine, built["actor_rollout_ref.ref.megatron"]
    assert (policy.strategy, policy.tensor_model_parallel_size, policy.pipeline_model_parallel_size) == (
        "megatron", 4, 2,
    )  # fmt: skip
    assert (reference.tensor_model_parallel_size, reference.pipeline_model_parallel_size) == (4, 2)
    assert (policy.optimizer_offload, policy.param_offload, policy.seed) == (True, False, 7)
    assert policy.dist_ckpt_optim_fully_reshardable is True
    assert built[ACTOR].optim.lr_decay_style == "constant"
    assert built[ACTOR].optim.clip_grad == job.spec.algorithm.gradient_clip
    if use_critic:
        assert built["critic"].engine.tensor_model_parallel_size == 4
        assert built["critic"].engine.seed == 7


def test_megatron_keeps_nothing_that_only_fsdp_understands(model):
    settings = "spec.verl={actor_rollout_ref.actor.fsdp_config.param_offload: true}"

    with pytest.raises(SettingsError, match=r"param_offload \(True\) has .*engine: fsdp\.$"):
        config_of(example("tool-math-gpu", model, MEGATRON % "offload: none", settings), model, "cuda")
    with pytest.raises(SettingsError, match="needs GPUs"):
        config_of(example("tool-math-gpu", model, MEGATRON % "offload: none"), model, "cpu")


def test_megatron_without_its_packages_is_refused_with_what_to_install(model):
    with pytest.raises(SettingsError, match=r"needs megatron\.core, .* not installed. Add megatron-core"):
        require_packages(example("tool-math-gpu", model, MEGATRON % "offload: none"))
    require_packages(example("tool-math-gpu", model))


def test_engines_with_gpus_of_their_own_use_most_of_their_memory(model):
    job = example("babyai-goto-h100-a40", model, "resources.rollout.tensorParallel=2")

    rollout = config_of(job, model, "cuda").actor_rollout_ref.rollout

    assert rollout.gpu_memory_utilization == 0.85
    assert (rollout.nnodes, rollout.n_gpus_per_node, rollout.tensor_model_parallel_size) == (8, 2, 2)


def test_gpus_that_share_rows_need_flash_attention(model, monkeypatch):
    job = example("babyai-goto-gpu", model, "resources.train.sequenceParallel=2")
    with pytest.raises(SettingsError, match="needs flash attention"):
        config_of(job, model, "cuda")

    monkeypatch.setattr("turnmill.training.verl.attention.find_spec", lambda name: object())
    config = config_of(job, model, "cuda")
    assert [
        OmegaConf.select(config, f"{role}.ulysses_sequence_parallel_size")
        for role in (ACTOR, "actor_rollout_ref.ref", "critic")
    ] == [2, 2, 2]


def test_micro_batches_that_are_shorter_than_a_row_are_refused(model):
    job = example("babyai-goto-gpu", model, "resources.train.microBatchTokens=1000")

    with pytest.raises(SettingsError, match=r"1000 is less than the longest row has on a GPU. Set it to 1536 or more"):
        config_of(job, model, "cuda")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_row_of_any_length_fits_into_a_micro_batch(device, model):
    name = "tool-arithmetic-cpu" if device == "cpu" else "tool-math-gpu"
    config = config_of(
        example(name, model, "agent.maxResponseLength=50000", "resources.train={gpusPerNode: 1}"), model, device
    )

    policy, longest = config.actor_rollout_ref, config.actor_rollout_ref.rollout.max_model_len
    assert longest > 50_000
    assert policy.actor.ppo_max_token_len_per_gpu == config.critic.ppo_max_token_len_per_gpu == longest
    assert policy.rollout.log_prob_max_token_len_per_gpu == policy.ref.log_prob_max_token_len_per_gpu == longest


def test_the_user_sets_the_token_limit_of_the_critic(model):
    overrides = "spec.verl={critic.ppo_max_token_len_per_gpu: 4096}"

    critic = config_of(example("babyai-goto-gpu", model, overrides), model, "cuda").critic

    # The name that verl reads.
    assert omega_conf_to_dataclass(critic).ppo_infer_max_token_len_per_gpu == 4096


@pytest.mark.parametrize("of_vllm", ["engine_kwargs.vllm.seed: 3", "engine_kwargs: {vllm: {seed: 3}}"])
def test_settings_of_the_user_override_those_of_turnmill(model, of_vllm):
    setting = f"spec.verl={{{ROLLOUT}.max_num_seqs: 7, {ROLLOUT}.{of_vllm}}}"

    config = config_of(example("babyai-goto-cpu", model, setting), model, "cpu")

    assert config.actor_rollout_ref.rollout.max_num_seqs == 7
    assert config.actor_rollout_ref.rollout.engine_kwargs.vllm.seed == 3
    assert "worker_extension_cls" in config.actor_rollout_ref.rollout.engine_kwargs.vllm


def test_a_setting_that_verl_does_not_know_is_refused(model):
    job = example("babyai-goto-cpu", model, f"spec.verl={{{ACTOR}.grad_clp: 2}}")

    with pytest.raises(SettingsError, match=rf"grad_clp \(2\) .* Did you mean {ACTOR}\.grad_clip\?"):
        build_verl_config(job, model=model, run_dir=Path("run"), device="cpu")


@pytest.mark.parametrize(
    "setting",
    [
        "algorithm.gamma: 0.5",
        "algorithm.norm_adv_by_std_in_grpo: false",
        "algorithm.rollout_correction.rollout_is: token",
        "algorithm.rollout_correction: {rollout_is: token}",
    ],
)
def test_a_setting_without_effect_is_refused_with_an_alternative(model, setting):
    job = example("babyai-goto-cpu", model, f"spec.verl={{{setting}}}")

    with pytest.raises(SettingsError, match=r"^spec\.verl\.algorithm\..* has no effect here\. (Set|Lower) .*spec\."):
        build_verl_config(job, model=model, run_dir=Path("run"), device="cpu")


@pytest.mark.feature("verl's multi-turn", "settings without effect")
@pytest.mark.parametrize(
    ("setting", "instead"),
    [
        ("data.truncation: error", "set spec.agent.maxPromptLength"),
        ("data.train_files: [x]", "Set spec.environment.options.path"),
        ("data.train_batch_size: 8", "Set spec.training.tasksPerStep"),
        ("data.return_raw_chat: true", "Tasks come from spec.environment"),
        ("custom_reward_function.path: x.py", "Set spec.environment.options.reward"),
        ("reward.reward_model.enable: true", "Set spec.environment.options.reward"),
        ("trainer.total_training_steps: 7", "Set spec.training.steps"),
        ("trainer: {total_epochs: 7}", "Set spec.training.steps"),
        ("actor_rollout_ref.rollout.n: 4", "Set spec.agent.groupSize"),
        ("ray_kwargs.ray_init.num_cpus: 2", "turnmill starts Ray itself"),
        ("actor_rollout_ref.actor.grad_clip: 2", "Set spec.algorithm.gradientClip"),
        ("actor_rollout_ref.rollout.multi_turn.format: glm", "Set the field of the same name in spec.agent"),
        ("critic.ppo_micro_batch_size_per_gpu: 2", "Set spec.resources.train.microBatchTokens"),
        ("skip.rollout_tq.enable: true", "Rollouts are not recorded"),
    ],
)
def test_a_setting_that_turnmill_replaces_is_refused_with_the_field_to_set(model, setting, instead):
    job = example("babyai-goto-cpu", model, f"spec.verl={{{setting}}}")

    with pytest.raises(SettingsError, match=rf"^spec\.verl\..* has no effect here\. .*{instead}"):
        build_verl_config(job, model=model, run_dir=Path("run"), device="cpu")


def test_the_settings_without_effect_are_settings_of_verl(defaults):
    unknown = dict(unknown_names(defaults, dict.fromkeys(known_settings.WITHOUT_EFFECT, 1)))

    assert unknown_names(compose_defaults("megatron"), dict.fromkeys(unknown, 1)) == []
    assert all(".megatron." in name or name == "critic.nccl_timeout" for name in unknown)


def leaves(engine: str) -> list[str]:
    """The settings of verl with an engine, without the sections that they are in."""
    names = [*known_settings._names(compose_defaults(engine))]
    sections = {name.rpartition(".")[0] for name in names}
    return [name for name in names if name not in sections and not name.endswith("._target_")]


def words_of_megatron() -> set[str]:
    """The attributes and texts in the code of verl that runs with Megatron, without declarations of settings."""
    verl = Path(import_module("verl").__file__).parent
    places = ("workers/engine/megatron", "utils/megatron", "utils/checkpoint", "models/mcore", "utils/modelopt")
    files = [file for place in places for file in (verl / place).rglob("*.py") if "fsdp" not in file.name]
    files += [verl / "utils" / "megatron_utils.py", verl / "workers" / "engine_workers.py"]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {node.attr for node in nodes if isinstance(node, ast.Attribute)} | texts


@pytest.mark.feature("verl's multi-turn", "settings without effect")
def test_every_setting_of_megatron_is_named_in_the_code_of_its_engine_or_refused(defaults):
    words, own = words_of_megatron(), set(leaves("megatron")) - set(leaves("fsdp"))
    # Megatron gets these sections as a whole.
    read = [name for name in own if ".override_transformer_config." in name or ".qat." in name]
    unread = [name for name in own if name.rpartition(".")[2] not in words and name not in read]

    assert len(own) > 150
    assert {"actor_rollout_ref.actor.megatron.dist_checkpointing_prefix", "critic.nccl_timeout"} <= set(unread)
    assert [name for name in unread if not known_settings.names_without_effect({name: 1}, "megatron")] == []


@pytest.mark.parametrize(("engine", "other"), [("fsdp", "megatron"), ("megatron", "fsdp")])
def test_a_setting_of_the_other_engine_is_refused_with_the_engine_that_reads_it(engine, other):
    own = sorted(set(leaves(other)) - set(leaves(engine)))

    refused = refused_verl_settings(dict.fromkeys(own, 1), engine)

    assert [each.name for each in refused] == own
    assert {each.rule for each in refused} == {"has no effect here"}
    assert {each.way_out for each in refused} == {f"It needs spec.resources.train.engine: {other}."}


@pytest.mark.parametrize(
    ("name", "engine", "other"),
    [
        ("actor_rollout_ref.model.use_liger", "megatron", "fsdp"),
        ("critic.model.enable_gradient_checkpointing", "megatron", "fsdp"),
        ("actor_rollout_ref.actor.checkpoint.async_save", "fsdp", "megatron"),
    ],
)
def test_a_setting_that_both_engines_have_is_refused_for_the_one_that_does_not_read_it(name, engine, other):
    way_out = f"It needs spec.resources.train.engine: {other}."

    assert refused_verl_settings({name: 1}, engine) == [known_settings.Refused(name, 1, "has no effect here", way_out)]
    assert refused_verl_settings({name: 1}, other) == []


def test_every_pattern_of_settings_that_need_another_is_of_verl_and_on_the_page(defaults):
    names = [*known_settings._names(defaults), *known_settings._names(compose_defaults("megatron"))]
    page = (Path(__file__).parents[2] / "docs" / "coming-from" / "verl.md").read_text()
    rows = [row for row in page.splitlines() if row.startswith("| `")]

    assert [pattern for pattern in ONLY_WITH if not fnmatch.filter(names, pattern)] == []
    assert [
        pattern for pattern, other in ONLY_WITH.items()
        if not any(f"`{pattern}`" in row and row.endswith(f"| `{other}` |") for row in rows)
    ] == []  # fmt: skip


def test_engines_get_images_that_are_normalised_already(model):
    """vLLM's own normalisation has weights that dummy weights replace, and that no weight sync brings back."""
    vision = pytest.importorskip("vllm.model_executor.models.vision")
    norm = vision.FusedInputNorm(image_mean=[0.5] * 3, image_std=[0.5] * 3, rescale_factor=1 / 255)

    config = config_of(example("tool-arithmetic-cpu", model), model, "cpu")

    assert norm.state_dict().keys() == {"weight", "bias"}
    assert config.actor_rollout_ref.rollout.load_format == "dummy"
    assert not config.actor_rollout_ref.rollout.engine_kwargs.vllm.mm_device_do_normalize
    assert vision.FusedInputNorm.identity().state_dict() == {}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_norm_of_gradients_is_clipped_at_what_the_job_says(device, model):
    config = config_of(example("babyai-goto-gpu", model, "spec.algorithm.gradientClip=0.25"), model, device)

    # verl's engines read only this name of it.
    assert (config.actor_rollout_ref.actor.optim.clip_grad, config.critic.optim.clip_grad) == (0.25, 0.25)


def test_settings_below_a_section_without_effect_may_have_an_effect(model):
    given = "data.apply_chat_template_kwargs: {enable_thinking: false}, data.mm_processor_kwargs: {x: 1}"
    job = example("babyai-goto-cpu", model, f"spec.verl={{{given}}}")

    config = build_verl_config(job, model=model, run_dir=Path("run"), device="cpu")

    assert config.data.apply_chat_template_kwargs == {"enable_thinking": False}


@pytest.mark.feature("verl's multi-turn", "other inference engines")
@pytest.mark.parametrize(
    "setting", ["actor_rollout_ref.rollout.name: sglang", "actor_rollout_ref: {rollout: {name: sglang}}"]
)
def test_an_engine_other_than_vllm_is_refused_with_the_reason(model, setting):
    job = example("babyai-goto-cpu", model, f"spec.verl={{{setting}}}")

    with pytest.raises(SettingsError, match=r"\('sglang'\) is not supported: weight sync, .* are made for vLLM\."):
        build_verl_config(job, model=model, run_dir=Path("run"), device="cpu")


@pytest.mark.parametrize(
    "setting",
    [
        "actor_rollout_ref.actor.strategy: fsdp",
        "actor_rollout_ref: {ref: {fsdp_config: {strategy: fsdp}}}",
        "critic.fsdp.strategy: fsdp",
    ],
)
def test_fsdp1_is_refused_without_gpus(model, setting):
    job = example("babyai-goto-cpu", model, f"spec.verl={{{setting}}}")

    with pytest.raises(SettingsError, match=r"^spec\.verl\..* needs GPUs: .* Leave it out for FSDP2"):
        build_verl_config(job, model=model, run_dir=Path("run"), device="cpu")
    build_verl_config(job, model=model, run_dir=Path("run"), device="cuda")


def test_a_check_finds_fsdp1_where_the_job_would_run_without_gpus():
    values: Any = {"spec.verl": {"critic.strategy": "fsdp"}, "spec.resources.train.engine": "fsdp"}
    values |= {"spec.algorithm.type": "grpo", "spec.resources.device": "cpu"}

    problems = [*checks.verl_settings(values)]

    assert [str(problem).partition(":")[0] for problem in problems] == ["spec.verl.critic.strategy"]
    assert "needs GPUs" in str(problems[0])


@pytest.mark.feature("verl's multi-turn", "settings without effect")
@pytest.mark.parametrize(
    "section", ["data", "trainer", "reward", "reward_model", "custom_reward_function", "ray_kwargs"]
)
def test_every_setting_of_these_sections_is_read_by_the_code_that_runs_or_refused(defaults, section):
    verl = Path(import_module("verl").__file__).parent
    places = ["trainer/ppo/v1", "experimental/agent_loop", "workers", "checkpoint_engine", "utils"]
    files = [file for place in places for file in (verl / place).rglob("*.py") if file.name != "rl_dataset.py"]
    files += Path(turnmill.__file__).parent.rglob("rollout/**/*.py")
    words = set(re.findall(r"\w+", "\n".join(file.read_text() for file in files)))
    names = [f"{section}.{name}" for name in known_settings._names(defaults[section])]

    unread = [name for name in names if name.rpartition(".")[2] not in words]

    assert [name for name in unread if not known_settings.names_without_effect({name: 1})] == []


ALGORITHMS = ("turn_ppo", "ppo", "grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "dapo", "gigpo")


@pytest.mark.parametrize(
    ("algorithm", "mode", "given", "level"),
    [
        *((algorithm, "sync", "{}", None) for algorithm in ALGORITHMS),
        *((algorithm, "separate_async", "{}", "token") for algorithm in ALGORITHMS),
        ("grpo", "colocate_async", "{}", "token"),
        ("grpo", "sync", "{importanceSampling: sequence}", "sequence"),
        ("turn_ppo", "colocate_async", "{importanceSampling: none}", None),
        ("turn_ppo", "colocate_async", "{bypass: true}", None),
    ],
)
def test_the_correction_of_every_algorithm_reaches_verl(algorithm, mode, given, level, model):
    name = "babyai-goto-cpu" if algorithm == "turn_ppo" else "babyai-goto-gigpo-cpu"
    section = f"spec.algorithm={{type: {algorithm}, rolloutCorrection: {given}}}"

    config = config_of(example(name, model, section, f"spec.training.mode={mode}"), model, "cpu")

    require_verl_accepts(config)
    found = omega_conf_to_dataclass(config.algorithm.rollout_correction, RolloutCorrectionConfig)
    assert (found.rollout_is, found.rollout_is_threshold, found.rollout_rs) == (level, 2.0, None)
    assert found.bypass_mode is ("bypass" in given)


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ("{lowerThreshold: 0.5, threshold: 5}", "rollout_is_threshold", "0.5_5.0"),
        ("{normalise: true}", "rollout_is_batch_normalize", True),
        ("{rejection: token}", "rollout_rs", "token_k1"),
        ("{rejection: sequence}", "rollout_rs", "seq_sum_k1"),
        ("{rejection: geometric}", "rollout_rs", "seq_mean_k1"),
        # verl bounds the inverse ratio.
        ("{rejection: token, rejectionLow: 0.5, rejectionHigh: 4}", "rollout_rs_threshold", "0.25_2.0"),
    ],
)
def test_the_settings_of_the_correction_reach_verl(given, name, value, model):
    section = f"spec.algorithm.rolloutCorrection={given}"

    assert (
        config_of(example("tool-arithmetic-cpu", model, section), model, "cpu").algorithm.rollout_correction[name]
        == value
    )


@pytest.mark.parametrize(
    ("setting", "overrides"),
    [
        ("{algorithm.rollout_correction.bypass_mode: true}", []),
        ("{actor_rollout_ref.rollout.calculate_log_probs: false}", []),
        ("{}", ["spec.agent.logprobs=false"]),
    ],
)
def test_jobs_without_ratios_stay_valid_in_asynchronous_modes(setting, overrides, model):
    mode = "spec.training.mode=colocate_async"
    job = example("tool-arithmetic-cpu", model, mode, f"spec.verl={setting}", *overrides)

    assert config_of(job, model, "cpu").algorithm.rollout_correction.rollout_is is None


@pytest.mark.parametrize(
    "setting",
    [
        "algorithm.rollout_correction.bypass_mode: true",
        f"{ROLLOUT}.calculate_log_probs: false",
        f"{ACTOR}.policy_loss.loss_mode: bypass_mode",
    ],
)
def test_settings_of_verl_that_ignore_the_correction_are_refused(setting, model):
    correction = "spec.algorithm.rolloutCorrection={importanceSampling: token}"
    job = example("tool-arithmetic-cpu", model, correction, f"spec.verl={{{setting}}}")

    with pytest.raises(SettingsError, match=r"^spec\.verl\..* ignores spec\.algorithm\.rolloutCorrection"):
        build_verl_config(job, model=model, run_dir=Path("run"), device="cpu")


@pytest.mark.parametrize(
    "name",
    [
        f"{ACTOR}.clip_ratio",
        ROLLOUT,
        f"{ROLLOUT}.name",
        # Open in verl's YAML.
        f"{ROLLOUT}.engine_kwargs.vllm.max_num_seqs",
        f"{MODEL}.override_config.attn_implementation",
        # Only in verl's dataclasses.
        f"{MODEL}.target_parameters",
        f"{ACTOR}.fsdp_config.mixed_precision.param_dtype",
        f"{ACTOR}.policy_loss.rollout_correction.rollout_is",
        f"{ACTOR}.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap",
        "critic.optim.override_optimizer_config.fused",
    ],
)
def test_known_settings_of_verl_are_accepted(name, defaults):
    assert unknown_names(defaults, {name: 1}) == []


@pytest.mark.parametrize(
    ("name", "closest"),
    [
        (f"{ACTOR}.clip_ration", f"{ACTOR}.clip_ratio"),
        (f"{ACTOR}.clip_ratio.low", f"{ACTOR}.clip_ratio_low"),
        (f"{MODEL}.lora.rnak", f"{MODEL}.lora.rank"),
        ("data.trian_batch_size", "data.train_batch_size"),
        ("qqqqqq", ""),
    ],
)
def test_the_closest_known_setting_is_suggested_for_an_unknown_one(name, closest, defaults):
    assert unknown_names(defaults, {name: 1}) == [(name, closest)]


def test_names_inside_a_mapping_are_checked(defaults):
    settings = {ACTOR: {"grad_clip": 1.0, "optim": {"lrr": 1.0}}, "critic": {"grad_clip": 2.0}}

    assert unknown_names(defaults, settings) == [(ACTOR, f"{ACTOR}.optim.lr")]


def test_every_setting_that_turnmill_sets_is_known_to_verl(model, defaults):
    lora = "spec.model.lora={rank: 8, alpha: 16, targetModules: [q_proj]}"
    job = example("babyai-goto-cpu", model, lora)
    names = ("tool-arithmetic-dapo-cpu", "babyai-goto-separate-cpu", "babyai-goto-gigpo-cpu")
    others = [example(name, model) for name in names]
    for each, device in ((job, "cpu"), (job, "cuda"), *((other, "cpu") for other in others)):
        config = OmegaConf.to_container(build_verl_config(each, model=model, run_dir=Path("run"), device=device))
        del config["turnmill"]

        assert unknown_names(defaults, config) == []


MODELS = ("actor_rollout_ref.model", "critic.model")


@pytest.mark.parametrize(("installed", "attention"), [(False, "sdpa"), (True, "flash_attention_2")])
def test_models_on_gpus_use_the_attention_that_is_installed(installed, attention, model, monkeypatch):
    monkeypatch.setattr("turnmill.training.verl.attention.find_spec", lambda name: object() if installed else None)

    config = config_of(example("babyai-goto-gpu", model), model, "cuda")

    used = {OmegaConf.select(config, f"{name}.override_config.attn_implementation") for name in MODELS}
    assert used == {attention}
    # Whatever the attention, logits of 16,384 tokens would take more memory than all layers' activations.
    assert config.actor_rollout_ref.model.use_fused_kernels


@pytest.mark.parametrize(("tokens", "fits"), [(53_509, True), (53_510, False)])
def test_rows_whose_mask_would_take_a_tenth_of_a_gpu_need_flash_attention(tokens, fits, model, monkeypatch):
    monkeypatch.setattr("turnmill.training.verl.attention.find_spec", lambda package: None)
    response = example("babyai-goto-gpu", model).spec.verlog.max_response_tokens
    job = example("babyai-goto-gpu", model, f"agent.maxPromptTokens={tokens - response}")

    if fits:
        assert config_of(job, model, "cuda").critic.ppo_max_token_len_per_gpu == tokens
    else:
        with pytest.raises(SettingsError, match=r"is 53510, .* a mask of 8 GiB .*at most 53509 tokens.*flash-attn"):
            config_of(job, model, "cuda")
    monkeypatch.setattr("turnmill.training.verl.attention.find_spec", lambda package: object())
    assert config_of(job, model, "cuda").critic.ppo_max_token_len_per_gpu == tokens


def test_micro_batches_with_masks_are_shorter_than_verls_default_for_critics(model, monkeypatch):
    job = example("babyai-goto-gpu", model)
    monkeypatch.setattr("turnmill.training.verl.attention.find_spec", lambda package: None)
    assert config_of(job, model, "cuda").critic.ppo_max_token_len_per_gpu == 16_384

    monkeypatch.setattr("turnmill.training.verl.attention.find_spec", lambda package: object())
    assert config_of(job, model, "cuda").critic.ppo_max_token_len_per_gpu == 32_768


@pytest.mark.parametrize(
    "name",
    [
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size",
        "actor_rollout_ref.ref.ulysses_sequence_parallel_size",
        "critic.ulysses_sequence_parallel_size",
    ],
)
def test_sequence_parallelism_without_flash_attention_is_refused(name, model, monkeypatch):
    job = example("babyai-goto-gpu", model, f"verl={{{name}: 2}}")
    monkeypatch.setattr("turnmill.training.verl.attention.find_spec", lambda package: None)

    with pytest.raises(
        SettingsError, match=rf"spec\.verl: {name}: 2 needs flash attention.*'sdpa'.*Install flash-attn"
    ):
        config_of(job, model, "cuda")

    monkeypatch.setattr("turnmill.training.verl.attention.find_spec", lambda package: object())
    assert OmegaConf.select(config_of(job, model, "cuda"), name) == 2


def test_on_a_cpu_engines_read_the_longest_row_and_take_the_largest_weight_at_once(tmp_path, model):
    def rollout(folder: Path, *overrides: str):
        job = example("babyai-goto-cpu", model, "spec.agent.maxPromptTokens=20000", *overrides)
        config = config_of(job, folder, "cpu")
        assert not config.actor_rollout_ref.model.enable_activation_offload
        return config.actor_rollout_ref.rollout

    large = Qwen2Config(vocab_size=150_000, hidden_size=64, num_hidden_layers=1, num_attention_heads=1)
    large.save_pretrained(tmp_path)

    usual, of_large = rollout(model), rollout(tmp_path)
    as_given = rollout(
        tmp_path,
        "spec.verl.actor_rollout_ref.rollout.max_num_batched_tokens=9000",
        "spec.verl.actor_rollout_ref.model.enable_activation_offload=true",
        "spec.verl.actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=64",
    )

    assert usual.max_num_batched_tokens == usual.max_model_len > 20_000
    assert usual.checkpoint_engine.update_weights_bucket_megabytes == 16
    # 150,000 x 64 numbers of four bytes.
    assert of_large.checkpoint_engine.update_weights_bucket_megabytes == 37
    assert as_given.max_num_batched_tokens == as_given.max_model_len
    assert as_given.checkpoint_engine.update_weights_bucket_megabytes == 64


def test_a_context_longer_than_the_models_positions_is_refused_unless_they_are_stretched(tmp_path):
    def rollout(folder: Path, **settings: object):
        sizes = {"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1}
        Qwen2Config(**sizes, max_position_embeddings=1000, **settings).save_pretrained(folder)
        job = example("babyai-goto-cpu", folder, "spec.agent.maxPromptTokens=1200")
        return config_of(job, folder, "cpu").actor_rollout_ref.rollout

    with pytest.raises(SettingsError, match=r"up to 12\d\d tokens together .* has 1000 positions"):
        rollout(tmp_path / "short")
    stretched = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1000, "rope_theta": 10000.0}
    assert rollout(tmp_path / "long", rope_parameters=stretched).max_model_len > 1200


def test_the_queue_has_room_for_every_row_of_a_step(model):
    config = config_of(example("tool-arithmetic-cpu", model), model, "cpu")

    assert config.transfer_queue.backend.SimpleStorage.total_storage_size is None
