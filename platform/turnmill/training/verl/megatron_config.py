"""verl's settings for `resources.train.engine: megatron`, translated from those of FSDP.

The configuration is resolved by verl's own code; no run with Megatron has been tried.
"""

from importlib.util import find_spec

from turnmill.core.errors import SettingsError
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.verl_settings import VerlSettings
from turnmill.training.verl.resource_config import ACTOR, CRITIC, MODEL

MEGATRON = "megatron"
PACKAGES = ("megatron.core", "megatron.bridge", "transformer_engine")
"""Modules of megatron-core, megatron-bridge and transformer-engine, which verl's engine imports."""

# Names of the same settings; the reference takes its own from the policy's.
_RENAMED = {
    f"{ACTOR}.optim.lr_scheduler_type": f"{ACTOR}.optim.lr_decay_style",
    f"{CRITIC}.optim.lr_scheduler_type": f"{CRITIC}.optim.lr_decay_style",
    f"{ACTOR}.fsdp_config.seed": f"{ACTOR}.megatron.seed",
    f"{ACTOR}.fsdp_config.param_offload": f"{ACTOR}.megatron.param_offload",
    f"{ACTOR}.fsdp_config.optimizer_offload": f"{ACTOR}.megatron.optimizer_offload",
    f"{CRITIC}.fsdp.seed": f"{CRITIC}.megatron.seed",
    f"{CRITIC}.fsdp.param_offload": f"{CRITIC}.megatron.param_offload",
    f"{CRITIC}.fsdp.optimizer_offload": f"{CRITIC}.megatron.optimizer_offload",
}
# Transformer Engine has the attention, and Megatron kernels of its own.
_OF_FSDP = (".strategy", ".attn_implementation", ".use_fused_kernels", ".fused_kernel_options.impl_backend",
            ".enable_gradient_checkpointing")  # fmt: skip


def uses_megatron(job: AgentTrainingJob) -> bool:
    """Return whether Megatron trains the job's models."""
    return job.spec.resources.train.engine == MEGATRON


def megatron_settings(job: AgentTrainingJob, settings: VerlSettings) -> VerlSettings:
    """Return settings for Megatron in place of those for FSDP.

    Layers are computed again in the backward pass, as FSDP does with gradient checkpointing. Checkpoints of the
    optimizer load on any number of GPUs.
    """
    translated = {_RENAMED.get(name, name): value for name, value in settings.items() if not name.endswith(_OF_FSDP)}
    train = job.spec.resources.train
    for engine in (f"{ACTOR}.megatron", f"{CRITIC}.megatron"):
        translated |= {
            f"{engine}.tensor_model_parallel_size": train.tensor_parallel,
            f"{engine}.pipeline_model_parallel_size": train.pipeline_parallel,
            f"{engine}.context_parallel_size": train.context_parallel,
            f"{engine}.expert_model_parallel_size": train.expert_parallel,
            f"{engine}.dist_ckpt_optim_fully_reshardable": True,
            f"{engine}.override_transformer_config.recompute_granularity": "full",
            f"{engine}.override_transformer_config.recompute_method": "uniform",
            f"{engine}.override_transformer_config.recompute_num_layers": 1,
        }
    return translated | {
        f"{ACTOR}.entropy_from_logits_with_chunking": train.chunked_logits,
        f"{MODEL}.use_fused_kernels": False,
    }


def refuse_megatron_on_cpus(job: AgentTrainingJob, device: str) -> None:
    """Raise SettingsError for Megatron without GPUs."""
    if uses_megatron(job) and device == "cpu":
        raise SettingsError(
            "spec.resources.train.engine (megatron) needs GPUs, and this machine has none. Leave it out, or run the "
            "job where GPUs are."
        )


def require_packages(job: AgentTrainingJob) -> None:
    """Raise SettingsError if the packages of Megatron are missing where a job needs them."""
    if uses_megatron(job) and (missing := [module for module in PACKAGES if not _is_installed(module)]):
        raise SettingsError(
            f"spec.resources.train.engine (megatron) needs {', '.join(missing)}: not installed. Add megatron-core, "
            "megatron-bridge and transformer-engine to the trainer's image, or set the engine to fsdp."
        )


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
