"""What workers write of responses, and the metrics over all workers, against what verl's trainer does with tokens."""

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import trainer_base
from verl.utils import tensordict_utils as tu

from turnmill.training.response_columns import Asked, LogProbStatistics, asking_for, combine, engine_kl, statistics_of
from turnmill.training.row_advantages import ROW_VALUES

PROMPTS, RESPONSES = (3, 1, 4, 2, 2, 5, 1), (4, 2, 6, 1, 3, 5, 2)
AVERAGES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"]


def nested(rows: list[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def columns(seed: int = 0) -> dict[str, list[Tensor]]:
    """Rows as the queue has them, with what a worker has computed of whole sequences; one row is not trained on."""
    generator = torch.Generator().manual_seed(seed)
    whole = [prompt + response for prompt, response in zip(PROMPTS, RESPONSES, strict=True)]
    return {
        "log_probs": [-torch.rand(length, generator=generator) for length in whole],
        "entropy": [torch.rand(length, generator=generator) for length in whole],
        "rollout_log_probs": [-torch.rand(length, generator=generator) for length in RESPONSES],
        "responses": [torch.zeros(length, dtype=torch.int64) for length in RESPONSES],
        "response_mask": [
            torch.randint(0, 2, (length,), generator=generator) * (number != 3)
            for number, length in enumerate(RESPONSES)
        ],
    }


def settings(average: str = "token-mean") -> Any:
    actor = {"loss_agg_mode": average, "loss_scale_factor": None}
    return OmegaConf.create({"actor": actor, "rollout": {"calculate_log_probs": True, "temperature": 1.0}})


def batch() -> KVBatchMeta:
    tags = [{"response_len": length} for length in RESPONSES]
    return KVBatchMeta([f"task{number}_0_0" for number in range(len(RESPONSES))], tags, "train")


def answer(asked: KVBatchMeta, rows: range, average: str = "token-mean") -> TensorDict:
    """Return what a worker writes that is asked for some of the rows."""
    whole = {name: nested([found[row] for row in rows]) for name, found in columns().items()}
    data = TensorDict({name: column for name, column in whole.items() if name != "log_probs"}, batch_size=len(rows))
    values = {name: [each[row] for row in rows] for name, each in asked.extra_info.get(ROW_VALUES, {}).items()}
    for name, value in (asked.extra_info | values).items():
        tu.assign_non_tensor_data(data, name, value)
    found = Asked.of(data)
    assert found is not None
    computed = TensorDict({name: whole[name] for name in ("log_probs", "entropy")}, batch_size=len(rows))
    return found.log_probs(computed, settings(average))


def metrics_of(*answers: TensorDict) -> dict[str, float]:
    """Return the metrics from what workers have answered, which verl collects by name."""
    found = [tu.get(each, "log_prob_statistics") for each in answers]
    return statistics_of(KVBatchMeta(["a"], [{}], "train", extra_info={"log_prob_statistics": found}))


def of_verl(monkeypatch: pytest.MonkeyPatch, average: str = "token-mean") -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the columns that verl's trainer writes after its workers have answered, and its metrics."""
    written: dict[str, Any] = {}

    def read(**_: object) -> TensorDict:
        whole = {name: nested(found) for name, found in columns().items()}
        return TensorDict(whole, batch_size=len(RESPONSES))

    def write(*, fields: TensorDict, **_: object) -> KVBatchMeta:
        written.update({name: fields[name] for name in ("old_log_probs", "entropy")})
        return batch()

    monkeypatch.setattr(trainer_base, "tq", SimpleNamespace(kv_batch_get=read, kv_batch_put=write))
    trainer = SimpleNamespace(
        config=OmegaConf.create({"actor_rollout_ref": settings(average), "algorithm": {}}),
        actor_rollout_wg=SimpleNamespace(compute_log_prob=lambda rows: rows),
    )
    metrics: dict[str, float] = {}
    trainer_base.PPOTrainer._compute_old_log_prob(trainer, batch(), metrics)
    return written, metrics


def asked(is_compared: list[bool] | None = None) -> KVBatchMeta:
    return asking_for("old_log_probs", batch(), {"calculate_entropy": True}, is_compared)


def test_a_worker_writes_the_columns_that_verls_trainer_writes(monkeypatch):
    written, _ = of_verl(monkeypatch)

    found = answer(asked(), range(7))

    assert sorted(name for name in found.keys() if name != "log_prob_statistics") == sorted(written)  # noqa: SIM118
    for name, column in written.items():
        assert [row.tolist() for row in found[name].unbind()] == [row.tolist() for row in column.unbind()]


@pytest.mark.parametrize("average", AVERAGES)
def test_metrics_of_one_worker_are_verls_to_the_last_digit(monkeypatch, average):
    _, expected = of_verl(monkeypatch, average)

    found = metrics_of(answer(asked(), range(7), average))

    divergence = {name: value for name, value in found.items() if name.startswith("rollout_corr/")}
    assert {name: value for name, value in found.items() if name not in divergence} == expected
    assert divergence.keys() == {"rollout_corr/kl", "rollout_corr/k3_kl"}


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("ends", [(0, 3, 7), (0, 1, 3, 4, 7), tuple(range(8))])
def test_metrics_of_several_workers_are_those_of_all_rows(average, ends):
    expected = metrics_of(answer(asked(), range(7), average))

    parts = [answer(asked(), range(first, end), average) for first, end in pairwise(ends)]

    assert metrics_of(*parts) == pytest.approx(expected, abs=1e-6)


def test_only_rows_of_the_newest_policy_are_compared():
    chosen, all_rows = [1, 4, 5], columns()
    is_compared = [row in chosen for row in range(7)]
    old = [all_rows["log_probs"][row][-RESPONSES[row] - 1 : -1] for row in chosen]
    others = [[all_rows[name][row] for row in chosen] for name in ("rollout_log_probs", "response_mask")]
    padded = [torch.nn.utils.rnn.pad_sequence(column, batch_first=True) for column in (old, *others)]

    found = metrics_of(*(answer(asked(is_compared), rows) for rows in (range(3), range(3, 7))))

    assert {name: found[name] for name in engine_kl(*padded)} == pytest.approx(engine_kl(*padded), abs=1e-6)


def test_without_rows_to_compare_there_is_only_the_entropy():
    assert metrics_of(answer(asked([False] * 7), range(7))).keys() == {"actor/entropy"}


def test_without_trained_tokens_metrics_are_verls_defaults():
    found = metrics_of(answer(asked(), range(3, 4)), answer(asked(), range(3, 4)))

    assert math.isnan(found["actor/entropy"])
    assert found["training/rollout_probs_diff_valid"] == 0


def test_probabilities_that_do_not_vary_have_no_correlation():
    part = answer(asked(), range(7))
    (alike,) = [tu.get(part, "log_prob_statistics")]
    constant = LogProbStatistics(
        alike.entropy,
        alike.weight,
        type(alike.comparison)(
            1, alike.comparison.metrics | {"training/rollout_actor_probs_pearson_corr": math.nan}, (0.5, 0.5)
        ),
    )

    found = combine([constant, constant])

    assert math.isnan(found["training/rollout_actor_probs_pearson_corr"])
    assert found["training/rollout_probs_diff_std"] == 0


def test_a_column_of_responses_is_only_written_where_it_is_asked_for():
    data = TensorDict({"response_mask": nested([torch.ones(2)])}, batch_size=1)

    assert Asked.of(data) is None
