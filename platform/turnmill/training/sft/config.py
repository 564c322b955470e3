"""Translation of a job that fine-tunes to the configuration of verl's trainer for it (`sft_trainer_engine`)."""

from collections.abc import Mapping
from pathlib import Path

from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf, open_dict

from turnmill.core.errors import SettingsError
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.verl_settings import VerlSettings
from turnmill.training.verl.attention import MODELS, attention_settings
from turnmill.training.verl.known_settings import unknown_names

SECTIONS = ("model", "engine", "optim", "checkpoint")
"""Sections of verl's configuration that the engine reads."""

_MICRO_BATCH_TOKENS = {"cpu": 32768, "cuda": 8192}


def compose_sft_defaults() -> DictConfig:
    """Return the sections of verl's default configuration of `sft_trainer_engine` that have an effect here."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("sft_trainer_engine")
    kept = OmegaConf.masked_copy(config, [*SECTIONS, "profiler"])
    OmegaConf.set_struct(kept, True)
    return kept


def unknown_engine_settings(settings: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the names in `spec.verl` that verl's engine has no setting for, each with the closest (or "")."""
    return unknown_names(compose_sft_defaults(), settings)


def build_sft_config(job: AgentTrainingJob, *, model: Path, device: str, steps: int) -> DictConfig:
    """Compose the configuration of a fine-tuning; settings in `spec.verl` override all others.

    Raises SettingsError for a setting in `spec.verl` that verl does not have.
    """
    config = compose_sft_defaults()
    for name, _ in unknown_names(config, job.spec.verl):
        raise SettingsError(
            f"spec.verl.{name} ({job.spec.verl[name]!r}) is no setting of verl's engine for fine-tuning. There are "
            f"{', '.join(SECTIONS)}."
        )
    settings = _model(job, model, device) | _engine(job, device) | _optimizer(job, steps)
    with open_dict(config):
        for name, value in (settings | dict(job.spec.verl)).items():
            OmegaConf.update(config, name, value, merge=True)
    OmegaConf.resolve(config)
    return config


def micro_batch_tokens(job: AgentTrainingJob, device: str) -> int:
    """Return the tokens of a micro-batch on each device: at least those of the longest row."""
    settings, train = job.spec.fine_tuning, job.spec.resources.train
    assert settings is not None
    tokens = train.micro_batch_tokens or _MICRO_BATCH_TOKENS[device]
    longest: int = -(-settings.max_length // (train.sequence_parallel if device == "cuda" else 1))
    return max(tokens, longest)


def _model(job: AgentTrainingJob, model: Path, device: str) -> VerlSettings:
    on_gpus = device == "cuda"
    attention = attention_settings()[f"{MODELS[0]}.override_config.attn_implementation"] if on_gpus else "sdpa"
    if on_gpus and job.spec.resources.train.sequence_parallel > 1 and attention == "sdpa":
        raise SettingsError(
            f"spec.resources.train.sequenceParallel ({job.spec.resources.train.sequence_parallel}) needs flash "
            "attention. Install flash-attn in the trainer's image, or set it to 1."
        )
    settings: VerlSettings = {
        "model.path": str(model),
        "model.use_remove_padding": on_gpus,
        "model.enable_gradient_checkpointing": on_gpus,
        "model.override_config.attn_implementation": attention,
        "model.use_fused_kernels": on_gpus and job.spec.resources.train.chunked_logits,
    }
    if (lora := job.spec.model.lora) is not None:
        modules = list(lora.target_modules)
        settings |= {
            "model.lora_rank": lora.rank,
            "model.lora_alpha": lora.alpha,
            "model.target_modules": modules[0] if modules == ["all-linear"] else modules,
        }
    return settings


def _engine(job: AgentTrainingJob, device: str) -> VerlSettings:
    train = job.spec.resources.train
    settings: VerlSettings = {"engine.strategy": "fsdp2", "engine.seed": job.spec.training.seed}
    if device == "cpu":
        return settings | {
            "engine.mixed_precision.param_dtype": "fp32",
            "engine.dtype": "float32",
            "engine.use_torch_compile": False,
        }
    return settings | {
        "engine.optimizer_offload": train.offload in {"optimizer", "all"},
        "engine.param_offload": train.offload == "all",
        "engine.ulysses_sequence_parallel_size": train.sequence_parallel,
    }


def _optimizer(job: AgentTrainingJob, steps: int) -> VerlSettings:
    settings = job.spec.fine_tuning
    assert settings is not None
    return {
        "optim.lr": settings.learning_rate,
        "optim.lr_scheduler_type": settings.learning_rate_schedule,
        "optim.weight_decay": settings.weight_decay,
        "optim.betas": list(settings.adam_betas),
        "optim.clip_grad": settings.gradient_clip,
        "optim.total_training_steps": steps,
    }
