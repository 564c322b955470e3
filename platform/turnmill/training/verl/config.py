"""Translation of a job to verl's configuration: a base, an overlay per device, and `spec.verl` last."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf, open_dict

from turnmill.core.errors import SettingsError
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.resources import ray_resource
from turnmill.jobs.verl_settings import VerlSettings, setting
from turnmill.training.verl.algorithm_config import learning_settings, sampler_settings
from turnmill.training.verl.attention import attention_settings, refuse_costly_masks, refuse_wrong_sequence_parallel
from turnmill.training.verl.correction_config import correction_settings, refuse_ignored_correction
from turnmill.training.verl.known_settings import Refused, refused_settings
from turnmill.training.verl.megatron_config import megatron_settings, refuse_megatron_on_cpus, uses_megatron
from turnmill.training.verl.resource_config import (
    longest_row,
    make_room_on_cpus,
    refuse_contexts_beyond,
    refuse_short_micro_batches,
    resource_settings,
)

NEVER = 10**9
# Checkpoint engine that transfers weights to engines on separate devices.
WEIGHT_TRANSFER = {"cpu": "gloo", "cuda": "nccl"}


def compose_defaults(engine: str = "fsdp") -> DictConfig:
    """Return verl's default configuration, as its command line composes it."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=["model_engine=megatron"] if engine == "megatron" else [])
    with open_dict(config):
        # Defaults of the queue's own configuration, into which verl merges its settings later.
        config.transfer_queue = OmegaConf.merge(_queue_defaults(), config.transfer_queue)
    OmegaConf.set_struct(config, True)
    return config


def _queue_defaults() -> Any:
    package = importlib.util.find_spec("transfer_queue")
    assert package is not None
    assert package.origin is not None
    return OmegaConf.load(Path(package.origin).with_name("config.yaml"))


def build_verl_config(job: AgentTrainingJob, *, model: Path, run_dir: Path, device: str) -> DictConfig:
    """Compose the configuration of a run; settings in `spec.verl` override all others.

    Raises SettingsError for a setting in `spec.verl` that verl does not have, that has no effect, or that makes it
    compute wrong numbers.
    """
    refuse_megatron_on_cpus(job, device)
    for each in refused_verl_settings(job.spec.verl, job.spec.resources.train.engine, device):
        raise SettingsError(f"spec.verl.{each.name} ({each.value!r}) {each.rule}. {each.way_out}")
    config = compose_defaults(job.spec.resources.train.engine)
    settings = (
        _base(job, model, run_dir)
        | (_cpu() if device == "cpu" else _cuda())
        | _mode(job, device)
        | resource_settings(job, device)
    )
    if uses_megatron(job):
        settings = megatron_settings(job, settings)
    with open_dict(config):
        for name, value in (settings | dict(job.spec.verl)).items():
            OmegaConf.update(config, name, value, merge=True)
        _make_room_for_rows(config, resource_settings(job, device) | dict(job.spec.verl))
        if device == "cpu":
            make_room_on_cpus(config, model, job.spec.verl)
        refuse_contexts_beyond(model, config)
        refuse_short_micro_batches(config)
        refuse_ignored_correction(config)
        refuse_wrong_sequence_parallel(config)
        refuse_costly_masks(config)
        config.turnmill = {"job": job.model_dump_json(by_alias=True), "run_dir": str(run_dir.absolute())}
    return config


def _make_room_for_rows(config: DictConfig, given: Mapping[str, object]) -> None:
    """Let micro-batches hold the longest row, as verl requires, unless `spec.verl` sets their size.

    verl uses the sizes of training for inference too, except for the critic, whose size for inference has a name of its
    own that verl's YAML lacks.
    """
    for name in ("actor_rollout_ref.actor", "critic"):
        engine = OmegaConf.select(config, name)
        if setting(given, f"{name}.ppo_max_token_len_per_gpu", None) is None:
            engine.ppo_max_token_len_per_gpu = max(engine.ppo_max_token_len_per_gpu, longest_row(config, engine))
    if setting(given, "critic.ppo_infer_max_token_len_per_gpu", None) is None:
        config.critic.ppo_infer_max_token_len_per_gpu = config.critic.ppo_max_token_len_per_gpu


def refused_verl_settings(
    settings: Mapping[str, object], engine: str = "fsdp", device: str | None = None
) -> list[Refused]:
    """Return the names in `spec.verl` that a run cannot follow, with the reasons."""
    return refused_settings(settings, engine, device, compose_defaults)


def _base(job: AgentTrainingJob, model: Path, run_dir: Path) -> VerlSettings:
    spec = job.spec
    return {
        **_data(job),
        **_model(job, model),
        **_policy(job),
        **_rollout(job),
        **learning_settings(job),
        **correction_settings(job),
        "algorithm.use_kl_in_reward": spec.kl.in_reward,
        "algorithm.kl_ctrl.type": spec.kl.type,
        "algorithm.kl_ctrl.kl_coef": spec.kl.coefficient,
        "algorithm.kl_ctrl.target_kl": spec.kl.target,
        "algorithm.kl_ctrl.horizon": spec.kl.horizon,
        "trainer.project_name": spec.tracking.project,
        "trainer.experiment_name": job.metadata.name,
        "trainer.logger": list(spec.tracking.loggers),
        "trainer.total_training_steps": spec.training.steps,
        "trainer.total_epochs": NEVER,
        "trainer.save_freq": spec.training.checkpoint_every,
        # turnmill's trainer itself validates before the first step and after the last.
        "trainer.test_freq": (spec.training.validation.every if spec.training.validation.episodes else None) or -1,
        "trainer.val_before_train": False,
        "trainer.default_local_dir": str((run_dir / "checkpoints").absolute()),
        "trainer.resume_mode": "disable",
        "trainer.nnodes": spec.resources.train.nodes,
        "trainer.n_gpus_per_node": spec.resources.train.gpus_per_node,
        "trainer.use_v1": True,
        # Not on a head without CPUs for work, where a storage unit would never start.
        "transfer_queue.backend.SimpleStorage.required_node_resource": _resource_of_training(job),
        # verl's limit of 100,000 rows would end a run whose steps have more.
        "transfer_queue.backend.SimpleStorage.total_storage_size": None,
        # Environments and tasks give the rewards.
        "reward.num_workers": 0,
    }


def _resource_of_training(job: AgentTrainingJob) -> str:
    """Return the Ray resource of machines that train: rollout machines should store no rows."""
    accelerator = job.spec.resources.train.accelerator
    return "CPU" if accelerator is None else ray_resource(accelerator)


def _data(job: AgentTrainingJob) -> VerlSettings:
    spec = job.spec
    return {
        "data.train_files": [],
        "data.val_files": [],
        "data.custom_cls.path": "pkg://turnmill.training.dataset",
        "data.dataloader_num_workers": 0,
        # A step uses all rows in order; their contents are derived from the step and the seed.
        "data.shuffle": False,
        "data.seed": spec.training.seed,
    }


def _model(job: AgentTrainingJob, model: Path) -> VerlSettings:
    settings: VerlSettings = {"actor_rollout_ref.model.path": str(model), "critic.model.path": str(model)}
    if (lora := job.spec.model.lora) is not None:
        modules: Any = list(lora.target_modules)
        # The critic trains all its weights: verl supports adapters for language models only.
        settings |= {
            "actor_rollout_ref.model.lora_rank": lora.rank,
            "actor_rollout_ref.model.lora_alpha": lora.alpha,
            "actor_rollout_ref.model.target_modules": modules[0] if modules == ["all-linear"] else modules,
        }
        settings["actor_rollout_ref.rollout.load_format"] = "safetensors"
        # Over the network verl sends only weights: engines that expect adapters would sample from the base model.
        settings["actor_rollout_ref.model.lora.merge"] = job.spec.training.mode == "separate_async"
    return settings


def _policy(job: AgentTrainingJob) -> VerlSettings:
    algorithm, actor = job.spec.reinforcement, "actor_rollout_ref.actor"
    return {
        f"{actor}.strategy": "fsdp2",
        f"{actor}.fsdp_config.strategy": "fsdp2",
        "actor_rollout_ref.ref.strategy": "fsdp2",
        "actor_rollout_ref.ref.fsdp_config.strategy": "fsdp2",
        f"{actor}.ppo_epochs": algorithm.epochs,
        f"{actor}.shuffle": True,
        f"{actor}.data_loader_seed": job.spec.training.seed,
        f"{actor}.fsdp_config.seed": job.spec.training.seed,
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.clip_ratio": algorithm.clip_ratio,
        f"{actor}.clip_ratio_low": algorithm.clip_ratio,
        f"{actor}.clip_ratio_high": getattr(algorithm, "clip_ratio_high", None) or algorithm.clip_ratio,
        f"{actor}.entropy_coeff": algorithm.entropy_coefficient,
        f"{actor}.optim.clip_grad": algorithm.gradient_clip,
        f"{actor}.optim.lr": algorithm.actor_learning_rate,
        f"{actor}.optim.weight_decay": algorithm.weight_decay,
        f"{actor}.optim.lr_scheduler_type": algorithm.learning_rate_schedule,
        f"{actor}.optim.betas": list(algorithm.adam_betas),
        f"{actor}.use_kl_loss": job.spec.kl.in_loss,
        f"{actor}.kl_loss_coef": job.spec.kl.coefficient,
        f"{actor}.kl_loss_type": "low_var_kl",
    }


def _rollout(job: AgentTrainingJob) -> VerlSettings:
    spec, rollout = job.spec, "actor_rollout_ref.rollout"
    return {
        f"{rollout}.name": "vllm",
        f"{rollout}.seed": spec.training.seed,
        f"{rollout}.temperature": spec.agent.temperature,
        f"{rollout}.val_kwargs.temperature": spec.training.validation.temperature,
        f"{rollout}.val_kwargs.do_sample": spec.training.validation.temperature > 0,
        f"{rollout}.log_prob_use_dynamic_bsz": True,
        # Engines start with dummy weights: with those vLLM would normalise images, and no weight sync replaces them.
        f"{rollout}.engine_kwargs.vllm.mm_device_do_normalize": False,
        f"{rollout}.agent.num_workers": spec.resources.agent_loop_workers,
        "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": True,
    }


def _mode(job: AgentTrainingJob, device: str) -> VerlSettings:
    """Return the settings of the training mode: how rollout and learning share time and devices."""
    spec, rollout, v1 = job.spec, "actor_rollout_ref.rollout", "trainer.v1"
    settings: VerlSettings = {f"{v1}.trainer_mode": spec.training.mode} | sampler_settings(job)
    if spec.training.mode == "sync":
        return settings
    settings |= {
        # A step uses only its own rows, whose staleness is limited by when they are requested.
        f"{v1}.sampler.max_off_policy_threshold": None,
    }
    if spec.training.mode == "colocate_async":
        return settings
    return settings | {
        # No engines on the training devices.
        "actor_rollout_ref.hybrid_engine": False,
        f"{rollout}.nnodes": spec.resources.rollout.replicas,
        f"{rollout}.n_gpus_per_node": spec.gpus_per_engine,
        f"{v1}.separate_async.parameter_sync_step": 1,
        f"{rollout}.checkpoint_engine.backend": WEIGHT_TRANSFER[device],
        f"{rollout}.checkpoint_engine.custom_backend_module": "turnmill.training.verl.weight_transfer",
        # The group is created for each sync, as with gloo, so that dead engines are not waited for.
        f"{rollout}.checkpoint_engine.engine_kwargs.nccl.rebuild_group": True,
    }


def _cuda() -> VerlSettings:
    """Return the settings for machines with GPUs that differ from verl's defaults."""
    return attention_settings() | {
        "trainer.device": "cuda",
        "actor_rollout_ref.model.use_remove_padding": True,
        "critic.model.use_remove_padding": True,
        "actor_rollout_ref.model.enable_gradient_checkpointing": True,
        "critic.model.enable_gradient_checkpointing": True,
    }


def _cpu() -> VerlSettings:
    """Return the settings for machines without GPUs: float32, no compilation, small buffers, one process per role."""
    rollout, tokens = "actor_rollout_ref.rollout", 32768
    settings: VerlSettings = {
        "trainer.device": "cpu",
        f"{rollout}.dtype": "float32",
        f"{rollout}.enforce_eager": True,
        f"{rollout}.enable_sleep_mode": False,
        f"{rollout}.free_cache_engine": False,
        f"{rollout}.gpu_memory_utilization": 0.1,
        f"{rollout}.max_num_seqs": 128,
        # vLLM rewinds the generator of a seeded request whose prompt was read in part, which torch's for CPUs cannot.
        f"{rollout}.enable_chunked_prefill": False,
        f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes": 16,
        f"{rollout}.engine_kwargs.vllm.worker_extension_cls": (
            "turnmill.training.verl.cpu.vllm_worker.CpuWorkerExtension"
        ),
        # The model runs in the engine's process; between two processes, vLLM would wait in a busy loop.
        f"{rollout}.engine_kwargs.vllm.distributed_executor_backend": "uni",
        f"{rollout}.engine_kwargs.vllm.kv_cache_memory_bytes": 256 * 1024**2,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": tokens,
        "critic.ppo_max_token_len_per_gpu": tokens,
    }
    for model in ("actor_rollout_ref.model", "critic.model"):
        settings |= {
            f"{model}.use_remove_padding": False,
            f"{model}.enable_gradient_checkpointing": False,
            f"{model}.override_config.attn_implementation": "sdpa",
        }
    for engine in ("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config", "critic.fsdp"):
        settings |= {
            f"{engine}.mixed_precision.param_dtype": "fp32",
            f"{engine}.dtype": "float32",
            f"{engine}.use_torch_compile": False,
        }
    return settings
