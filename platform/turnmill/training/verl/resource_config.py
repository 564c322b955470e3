"""verl's settings for the sections `train` and `rollout` of a job's resources."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from turnmill.core.errors import SettingsError
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.verl_settings import VerlSettings, setting

ACTOR, REFERENCE, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "ref", "rollout", "model"))
CRITIC = "critic"
# vLLM's own default is 0.9; NCCL takes memory beside the engine for the transfer of weights.
GPU_MEMORY_SHARE_ALONE = 0.85


def resource_settings(job: AgentTrainingJob, device: str) -> VerlSettings:
    """Return the settings that the job sets, and those whose defaults here differ from verl's."""
    train, rollout = job.spec.resources.train, job.spec.resources.rollout
    settings: VerlSettings = {f"{ROLLOUT}.tensor_model_parallel_size": rollout.tensor_parallel or 1}
    if train.micro_batch_tokens is not None:
        settings |= dict.fromkeys(
            (f"{ACTOR}.ppo_max_token_len_per_gpu", f"{CRITIC}.ppo_max_token_len_per_gpu"), train.micro_batch_tokens
        )
    if rollout.max_sequences is not None:
        settings[f"{ROLLOUT}.max_num_seqs"] = rollout.max_sequences
    if rollout.dtype is not None:
        settings[f"{ROLLOUT}.dtype"] = rollout.dtype
    return settings if device == "cpu" else settings | _on_gpus(job)


def _on_gpus(job: AgentTrainingJob) -> VerlSettings:
    train, rollout = job.spec.resources.train, job.spec.resources.rollout
    settings: VerlSettings = {
        # verl's fused kernels in torch take the last layer's output instead of logits.
        f"{MODEL}.use_fused_kernels": train.chunked_logits,
        f"{MODEL}.fused_kernel_options.impl_backend": "torch",
    }
    for engine in (f"{ACTOR}.fsdp_config", f"{CRITIC}.fsdp"):
        settings[f"{engine}.optimizer_offload"] = train.offload in {"optimizer", "all"}
        settings[f"{engine}.param_offload"] = train.offload == "all"
    if train.sequence_parallel > 1:
        for role in (ACTOR, REFERENCE, CRITIC):
            settings[f"{role}.ulysses_sequence_parallel_size"] = train.sequence_parallel
    if rollout.gpu_memory_share is not None:
        settings[f"{ROLLOUT}.gpu_memory_utilization"] = rollout.gpu_memory_share
    elif job.spec.training.mode == "separate_async":
        settings[f"{ROLLOUT}.gpu_memory_utilization"] = GPU_MEMORY_SHARE_ALONE
    return settings


def longest_row(config: DictConfig, engine: DictConfig | None = None) -> int:
    """Return the tokens that the longest row has on a GPU of the policy, or of another engine."""
    engine = config.actor_rollout_ref.actor if engine is None else engine
    sequence_parallel: int = engine.get("ulysses_sequence_parallel_size", 1)
    longest: int = config.actor_rollout_ref.rollout.max_model_len
    return math.ceil(longest / sequence_parallel)


def make_room_on_cpus(config: DictConfig, model: Path, given: Mapping[str, object]) -> None:
    """Let engines read the longest row at once and take the largest weight in one piece, unless `given` sets that.

    Without chunked prefill vLLM refuses longer rows, and verl fails as it raises the number; verl sends no part of a
    weight through shared memory. Activations are not offloaded to where they are.
    """
    rollout = config.actor_rollout_ref.rollout
    if not rollout.enable_chunked_prefill:
        rollout.max_num_batched_tokens = max(rollout.max_num_batched_tokens, rollout.max_model_len)
    for owner in (config.actor_rollout_ref, config.critic):
        owner.model.enable_activation_offload = False
    transfer = rollout.checkpoint_engine
    if setting(given, f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes", None) is None:
        needed = math.ceil(_largest_weight_bytes(model) / 2**20)
        transfer.update_weights_bucket_megabytes = max(transfer.update_weights_bucket_megabytes, needed)


def refuse_contexts_beyond(model: Path, config: DictConfig) -> None:
    """Raise SettingsError for contexts longer than a model's positions, unless it stretches them; vLLM would refuse."""
    sizes = _sizes(model)
    stretched = sizes.get("rope_scaling") or "factor" in (sizes.get("rope_parameters") or {})
    limit, length = sizes.get("max_position_embeddings"), config.actor_rollout_ref.rollout.max_model_len
    if limit and length > limit and not stretched:
        raise SettingsError(
            f"spec.agent: prompt and response have up to {length} tokens together ({ROLLOUT}.max_model_len), and "
            f"the model has {limit} positions (max_position_embeddings). Set shorter ones, or take another model."
        )


def _sizes(model: Path) -> Mapping[str, Any]:
    """Return the configuration of a model's text part; empty if it cannot be read."""
    try:
        config = json.loads((model / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    sizes: Mapping[str, Any] = config.get("text_config") or config
    return sizes


def _largest_weight_bytes(model: Path) -> int:
    """Return the bytes of a model's embeddings or of its widest layer in float32; 0 if its configuration lacks them."""
    sizes = _sizes(model)
    width = max(sizes.get("vocab_size") or 0, sizes.get("intermediate_size") or 0)
    return 4 * int(sizes.get("hidden_size") or 0) * int(width)


def refuse_short_micro_batches(config: DictConfig) -> None:
    """Raise SettingsError for micro-batches into which the longest row does not fit; verl would notice in a step."""
    for name, engine in ((ACTOR, config.actor_rollout_ref.actor), (CRITIC, config.critic)):
        tokens, needed = engine.ppo_max_token_len_per_gpu, longest_row(config, engine)
        if tokens < needed:
            raise SettingsError(
                f"spec.resources.train.microBatchTokens ({name}.ppo_max_token_len_per_gpu): {tokens} is less than the "
                f"longest row has on a GPU. Set it to {needed} or more, or leave it out."
            )
