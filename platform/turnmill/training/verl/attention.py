"""Attention of policy, reference and critic on GPUs: flash attention if it is installed, else torch's own (sdpa).

sdpa is exact for verl's packed rows, for which it builds a mask: T² bytes and 2 T² in bfloat16 for T tokens of a
micro-batch, so 0.75 GiB for 16,384 tokens and 3 GiB for 32,768. Its compute grows with T², too.
"""

from importlib.util import find_spec

from omegaconf import DictConfig, OmegaConf

from turnmill.core.errors import SettingsError
from turnmill.jobs.verl_settings import VerlSettings

VERL_DEFAULT = "flash_attention_2"
MODELS = ("actor_rollout_ref.model", "critic.model")
SEQUENCE_PARALLEL = (
    ("actor_rollout_ref.actor.ulysses_sequence_parallel_size", MODELS[0]),
    ("actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size", MODELS[0]),
    ("actor_rollout_ref.ref.ulysses_sequence_parallel_size", MODELS[0]),
    ("actor_rollout_ref.ref.fsdp_config.ulysses_sequence_parallel_size", MODELS[0]),
    ("critic.ulysses_sequence_parallel_size", MODELS[1]),
    ("critic.fsdp.ulysses_sequence_parallel_size", MODELS[1]),
)
"""Settings of sequence parallelism (Ulysses), each with its model."""


def attention_settings() -> VerlSettings:
    """Return verl's settings for the attention that is installed here.

    Without flash attention, verl would compute log-probs token by token and keep logits of the whole vocabulary; its
    fused kernels in torch compute both in chunks.
    """
    if find_spec("flash_attn") is not None:
        return {f"{model}.override_config.attn_implementation": "flash_attention_2" for model in MODELS}
    return {f"{model}.override_config.attn_implementation": "sdpa" for model in MODELS} | {
        f"{MODELS[0]}.use_fused_kernels": True,
        f"{MODELS[0]}.fused_kernel_options.impl_backend": "torch",
    }


def refuse_wrong_sequence_parallel(config: DictConfig) -> None:
    """Raise SettingsError for sequence parallelism without flash attention, the only one that verl makes parallel.

    With another attention each rank would attend to its own part of a row alone, and every log-prob would be wrong.
    """
    for name, model in SEQUENCE_PARALLEL:
        ranks = OmegaConf.select(config, name, default=1)
        attention = str(OmegaConf.select(config, f"{model}.override_config.attn_implementation", default=VERL_DEFAULT))
        if ranks > 1 and not attention.startswith("flash_attention"):
            raise SettingsError(
                f"spec.verl: {name}: {ranks} needs flash attention, but {model} uses {attention!r}: log-probs would be "
                "wrong. Install flash-attn in the trainer's image, or remove the setting and lower "
                "ppo_max_token_len_per_gpu."
            )
