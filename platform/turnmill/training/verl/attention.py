"""Attention of policy, reference and critic on GPUs: flash attention if it is installed, else torch's own (sdpa).

sdpa is exact for verl's packed rows, for which it builds a mask: T² bytes and 2 T² in bfloat16 for T tokens of a
micro-batch, so 0.75 GiB for 16,384 tokens and 3 GiB for 32,768. Its compute grows with T², too.
"""

import math
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

MICRO_BATCH_TOKENS = 16_384
"""Tokens of a packed micro-batch with sdpa if no row is longer; as verl has for policies, half of what critics have."""

MAX_MASK_BYTES = 8 * 1024**3
"""A mask of this size takes a tenth of an H100's memory."""

_MASK_BYTES_PER_PAIR = 3
_TOKENS = (
    ("actor_rollout_ref.actor.ppo_max_token_len_per_gpu", MODELS[0]),
    ("actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu", MODELS[0]),
    ("actor_rollout_ref.ref.log_prob_max_token_len_per_gpu", MODELS[0]),
    ("critic.ppo_max_token_len_per_gpu", MODELS[1]),
    ("critic.ppo_infer_max_token_len_per_gpu", MODELS[1]),
)
"""Settings of the tokens in a micro-batch, each with its model."""


def attention_settings() -> VerlSettings:
    """Return verl's settings for the attention that is installed here."""
    if find_spec("flash_attn") is not None:
        return {f"{model}.override_config.attn_implementation": "flash_attention_2" for model in MODELS}
    return {f"{model}.override_config.attn_implementation": "sdpa" for model in MODELS} | {
        "critic.ppo_max_token_len_per_gpu": MICRO_BATCH_TOKENS,
    }


def refuse_costly_masks(config: DictConfig) -> None:
    """Raise SettingsError for packed micro-batches whose mask with sdpa exceeds `MAX_MASK_BYTES`."""
    longest = math.isqrt(MAX_MASK_BYTES // _MASK_BYTES_PER_PAIR)
    for name, model in _TOKENS:
        tokens = OmegaConf.select(config, name, default=0) or 0
        is_packed = OmegaConf.select(config, f"{model}.use_remove_padding", default=False)
        attention = OmegaConf.select(config, f"{model}.override_config.attn_implementation", default=VERL_DEFAULT)
        if attention == "sdpa" and is_packed and tokens > longest:
            raise SettingsError(
                f"{name} is {tokens}, as long as the longest row at least, and needs a mask of "
                f"{_MASK_BYTES_PER_PAIR * tokens**2 / 1024**3:.0f} GiB with the attention 'sdpa'; at most {longest} "
                "tokens are allowed. Install flash-attn in the trainer's image, or shorten the agent's prompts and "
                "responses (or this setting in spec.verl)."
            )


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
