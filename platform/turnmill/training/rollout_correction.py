"""Off-policy correction of a step's rows by verl's `rollout_corr_helper`: weights and masks of the policy's loss.

Axes: R rows, G response tokens.
"""

import torch
import transfer_queue as tq
from omegaconf import DictConfig
from torch import Tensor
from transfer_queue import KVBatchMeta

from turnmill.core.errors import RunFailedError
from turnmill.training.batches.ragged import padded, put_ragged
from turnmill.training.verl.types import Metrics

WEIGHTS = "rollout_is_weights"
"""Column of the weights, by which verl's losses multiply the loss of each token."""


def correct_rows(batch: KVBatchMeta, settings: DictConfig) -> Metrics:
    """Write weights and mask of the loss into the queue, and return verl's metrics of the correction.

    Rows need log-probs of engine and trainer. Advantages are computed before, from all tokens.
    """
    fields = ["old_log_probs", "rollout_log_probs", "response_mask"]
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
    if "rollout_log_probs" not in data:
        raise _no_log_probs()
    lengths_R = data["response_mask"].offsets().diff()
    old_RG, rollout_RG, mask_RG = (padded(data[name]) for name in fields)
    columns, metrics = correction(old_RG, rollout_RG, mask_RG, settings)
    put_ragged(batch, columns, lengths_R)
    return metrics


def correction(
    old_log_probs_RG: Tensor, rollout_log_probs_RG: Tensor, mask_RG: Tensor, settings: DictConfig
) -> tuple[dict[str, Tensor], Metrics]:
    """Return the weights and the mask of the loss, as far as the settings ask for them, and verl's metrics.

    `old_log_probs_RG` are those of the trainer's policy at the start of the step, `rollout_log_probs_RG` the engine's;
    both may have any floating-point type, and ratios are computed in float32. Weights are those of truncated importance
    sampling (Espeholt et al., 2018, arXiv:1802.01561) for the behaviour policy of decoupled PPO (Hilton et al., 2021,
    arXiv:2110.00641). Raises RunFailedError if the engine's log-probs are missing.
    """
    # verl's module takes seconds to import.
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    old_RG, rollout_RG = old_log_probs_RG.float(), rollout_log_probs_RG.float()
    trained = mask_RG.bool()
    if not trained.any():
        return ({} if settings.rollout_is is None else {WEIGHTS: torch.zeros_like(old_RG)}), {}
    if not rollout_RG[trained].any() and old_RG[trained].any():
        raise _no_log_probs()
    weights, kept_RG, metrics = compute_rollout_correction_and_rejection_mask(
        old_log_prob=old_RG,
        rollout_log_prob=rollout_RG,
        response_mask=mask_RG,
        rollout_is=settings.rollout_is,
        rollout_is_threshold=settings.rollout_is_threshold,
        rollout_is_batch_normalize=settings.rollout_is_batch_normalize,
        rollout_rs=settings.rollout_rs,
        rollout_rs_threshold=settings.rollout_rs_threshold,
    )
    # verl's names for the divergence hold that of rows of the newest policy.
    del metrics["rollout_corr/kl"]
    metrics["turnmill/off_policy_kl"] = metrics.pop("rollout_corr/k3_kl")
    columns = {} if weights is None else {WEIGHTS: weights.batch[WEIGHTS]}
    return columns | ({} if settings.rollout_rs is None else {"response_mask": kept_RG}), metrics


def _no_log_probs() -> RunFailedError:
    return RunFailedError(
        "The rows have no log-probs of the engine, with which spec.algorithm.rolloutCorrection compares the trainer's. "
        "Let the agent loop return them, or set importanceSampling and rejection to none.",
        "rollout",
    )
