"""Weights and masks of off-policy correction, compared with a computation by hand, and their effect on the loss."""

from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig
from verl.workers.utils.losses import ppo_loss

from support.row_queue import RowQueue
from turnmill.core.errors import RunFailedError
from turnmill.training import rollout_correction
from turnmill.training.batches import ragged
from turnmill.training.rollout_correction import WEIGHTS, correct_rows, correction

# A turn; a trajectory with an observation in its middle; a row of one token; a row that only pads the batch.
MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 0, 1, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
LENGTHS = (3, 5, 1, 2)
ENGINE = np.array([[-1.0, -0.5, -2.0, 0, 0], [-0.3, -1.7, 0, -0.9, -2.5], [-3.0, 0, 0, 0, 0], [0.0, 0, 0, 0, 0]])
CHANGE = np.array([[0.9, -0.4, 0.1, 0, 0], [0.05, -1.3, 7, 0.6, 1.1], [-0.8, 0, 0, 0, 0], [5.0, 5, 0, 0, 0]])
"""Logarithms of the ratios of trainer and engine; those of observations and padding must have no effect."""


def settings(**changes: Any) -> DictConfig:
    found = {"rollout_is": None, "rollout_is_threshold": 2.0, "rollout_is_batch_normalize": False, "rollout_rs": None}
    return OmegaConf.create(found | {"rollout_rs_threshold": None, "bypass_mode": False} | changes)


def ratios(level: str, change: np.ndarray = CHANGE) -> np.ndarray:
    """Return the ratio that each token is judged by, 0 outside the mask."""
    if level == "sequence":
        change = np.repeat((change * MASK).sum(1, keepdims=True), MASK.shape[1], axis=1)
    elif level == "geometric":
        change = np.repeat((change * MASK).sum(1, keepdims=True) / MASK.sum(1, keepdims=True).clip(1), 5, axis=1)
    return np.exp(change) * MASK


def corrected(dtype: torch.dtype = torch.float32, **changes: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    old, engine = torch.tensor(ENGINE + CHANGE).to(dtype), torch.tensor(ENGINE).to(dtype)
    return correction(old, engine, torch.tensor(MASK), settings(**changes))


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("threshold", [1.5, 2.0, 50.0])
def test_weights_are_ratios_truncated_at_the_threshold(level, threshold):
    columns, metrics = corrected(rollout_is=level, rollout_is_threshold=threshold)

    expected = np.minimum(ratios(level), threshold)
    np.testing.assert_allclose(columns[WEIGHTS].numpy(), expected, rtol=1e-5)
    assert columns.keys() == {WEIGHTS}
    weights = expected[MASK == 1]
    share = weights.sum() ** 2 / (len(weights) * (weights**2).sum())
    assert metrics["rollout_corr/rollout_is_eff_sample_size"] == pytest.approx(share, rel=1e-5)


def test_the_divergence_of_all_rows_is_that_of_their_ratios():
    _, metrics = corrected(rollout_is="token")

    of_token = np.exp(CHANGE) - CHANGE - 1
    assert metrics["turnmill/off_policy_kl"] == pytest.approx(of_token[MASK == 1].mean(), rel=1e-5)
    # These are of rows of the newest policy alone.
    assert not {"rollout_corr/kl", "rollout_corr/k3_kl"} & metrics.keys()


def test_the_share_of_truncated_tokens_is_told():
    _, metrics = corrected(rollout_is="token")

    # exp(0.9) and exp(1.1) of eight tokens.
    assert metrics["rollout_corr/rollout_is_ratio_fraction_high"] == pytest.approx(2 / 8)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_weights_outside_two_thresholds_are_zero(level):
    columns, _ = corrected(rollout_is=level, rollout_is_threshold="0.5_2.0")

    found = ratios(level)
    expected = np.where((found >= 0.5) & (found <= 2.0), found, 0.0)
    np.testing.assert_allclose(columns[WEIGHTS].numpy(), expected, rtol=1e-5)
    assert 0 < (expected > 0).sum() < MASK.sum()


def test_normalised_weights_have_a_mean_of_one():
    columns, _ = corrected(rollout_is="token", rollout_is_batch_normalize=True)

    expected = np.minimum(ratios("token"), 2.0)
    np.testing.assert_allclose(columns[WEIGHTS].numpy(), expected / expected[MASK == 1].mean(), rtol=1e-5)


def test_ratios_of_bfloat16_log_probs_are_computed_in_float32():
    columns, _ = corrected(torch.bfloat16, rollout_is="sequence", rollout_is_threshold=1e6)

    rounded = [torch.tensor(x).bfloat16().double().numpy() for x in (ENGINE + CHANGE, ENGINE)]
    assert columns[WEIGHTS].dtype == torch.float32
    # In bfloat16 itself a sum of log-ratios is wrong by about 1 %.
    np.testing.assert_allclose(columns[WEIGHTS].numpy(), ratios("sequence", rounded[0] - rounded[1]), rtol=1e-5)


@pytest.mark.parametrize(
    ("criterion", "level"), [("token_k1", "token"), ("seq_sum_k1", "sequence"), ("seq_mean_k1", "geometric")]
)
def test_rejection_keeps_ratios_between_its_bounds(criterion, level):
    # verl bounds the inverse ratio: ratios from 0.6 to 2.4 are kept.
    columns, metrics = corrected(rollout_rs=criterion, rollout_rs_threshold=f"{1 / 2.4}_{1 / 0.6}")

    found = ratios(level)
    kept = MASK * (found >= 0.6) * (found <= 2.4)
    assert columns.keys() == {"response_mask"}
    assert columns["response_mask"].tolist() == kept.tolist()
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(1 - kept.sum() / MASK.sum())


def test_a_step_without_trained_tokens_has_weights_of_zero():
    columns, metrics = correction(
        torch.tensor(ENGINE),
        torch.tensor(ENGINE),
        torch.zeros(MASK.shape, dtype=torch.long),
        settings(rollout_is="token"),
    )

    assert (columns[WEIGHTS].any().item(), metrics) == (False, {})


def test_missing_log_probs_of_the_engine_are_no_ratios():
    with pytest.raises(RunFailedError, match="no log-probs of the engine"):
        correction(torch.tensor(ENGINE), torch.zeros(MASK.shape), torch.tensor(MASK), settings(rollout_is="token"))


@pytest.fixture
def queue(monkeypatch) -> RowQueue:
    queue = RowQueue()
    monkeypatch.setattr(rollout_correction, "tq", queue)
    monkeypatch.setattr(ragged, "tq", queue)
    for number, length in enumerate(LENGTHS):
        queue.add(
            f"row{number}_0_0",
            old_log_probs=(ENGINE + CHANGE)[number, :length].tolist(),
            rollout_log_probs=ENGINE[number, :length].tolist(),
            response_mask=MASK[number, :length].tolist(),
        )
    return queue


ADVANTAGES = np.array([[0.5, -1.0, 2.0, 0, 0], [1.0, 0.3, 9, -0.7, 0.2], [-1.5, 0, 0, 0, 0], [0.0, 0, 0, 0, 0]])


def gradient(queue: RowQueue, average: str) -> np.ndarray:
    """Return the gradient of verl's loss by the log-prob of each response token, at the policy of the step's start."""
    keys = [*queue.rows]
    columns = queue.kv_batch_get(keys=keys, partition_id="train", select_fields=list(queue.rows[keys[0]]))
    for name, of_row in (("prompts", lambda n: torch.ones(2)), ("responses", torch.ones), ("advantages", None)):
        rows = [of_row(n) if of_row else torch.tensor(a[:n]) for n, a in zip(LENGTHS, ADVANTAGES, strict=True)]
        columns[name] = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    data = TensorDict(columns, batch_size=len(keys))
    tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=int(MASK.sum()), global_batch_size=len(keys))
    # Log-probs of all tokens of a row but the last one's successor; those of the response begin at the second.
    leaves = [torch.zeros(n + 2, dtype=torch.float64, requires_grad=True) for n in LENGTHS]
    old = [
        torch.cat([torch.zeros(1), torch.tensor((ENGINE + CHANGE)[i, :n]), torch.zeros(1)])
        for i, n in enumerate(LENGTHS)
    ]
    log_probs = torch.nested.as_nested_tensor(
        [leaf + start for leaf, start in zip(leaves, old, strict=True)], layout=torch.jagged
    )
    config = FSDPActorConfig(
        strategy="fsdp2", rollout_n=1, use_dynamic_bsz=True, ppo_micro_batch_size_per_gpu=1, loss_agg_mode=average
    )
    loss, _ = ppo_loss(config, {"log_probs": log_probs}, data)
    loss.backward()
    found = np.zeros(MASK.shape)
    for row, (leaf, n) in enumerate(zip(leaves, LENGTHS, strict=True)):
        assert leaf.grad is not None
        found[row, :n] = leaf.grad[1 : n + 1].numpy()
    return found


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("average", ["token-mean", "seq-mean-token-mean"])
def test_weights_multiply_the_gradient_of_each_token(queue, level, average):
    before = gradient(queue, average)

    metrics = correct_rows(queue.meta(), settings(rollout_is=level))

    np.testing.assert_allclose(gradient(queue, average), before * np.minimum(ratios(level), 2.0), rtol=1e-5)
    assert np.abs(before[MASK == 1]).min() > 0
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(
        np.minimum(ratios(level), 2.0)[MASK == 1].mean(), rel=1e-5
    )


def test_rejected_tokens_have_no_gradient(queue):
    before = gradient(queue, "token-mean")

    correct_rows(queue.meta(), settings(rollout_rs="token_k1", rollout_rs_threshold="0.5_2.0"))

    found = ratios("token")
    np.testing.assert_allclose(gradient(queue, "token-mean"), before * ((found >= 0.5) & (found <= 2.0)), rtol=1e-6)
