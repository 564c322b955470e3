"""One step's gradients do not depend on the number of ranks, on packing, or much on bfloat16."""

from pathlib import Path

import pytest
import torch

from support import gradient_ranks
from support.fsdp_ranks import run_on_ranks, save_model
from support.gradient_ranks import CRITICS, POLICY_LOSSES, file_name

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

LOSSES = [*(f"language_model: {name}" for name in POLICY_LOSSES), *(f"value_model: {name}" for name in CRITICS)]
# Three decimal digits, in a model of two layers.
BFLOAT16_ERROR = 0.05

Gradients = dict[str, dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def gradients_on(tmp_path_factory):
    """Compute the gradients of all losses once for each number of ranks."""
    folder = tmp_path_factory.mktemp("model")
    save_model(folder)

    def on(ranks: int, *, packed: bool, dtype: str = "fp32") -> Gradients:
        file: Path = folder / file_name(ranks, packed, dtype)
        if not file.exists():
            run_on_ranks(gradient_ranks.save_gradients, ranks, folder, ranks)
        found: Gradients = torch.load(file)
        assert sorted(found) == sorted(LOSSES)
        return found

    return on


def difference(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Return the norm of the difference of all gradients, relative to the norm of those expected."""
    assert found.keys() == expected.keys()
    flat, flat_expected = (
        torch.cat([each[name].flatten().double() for name in sorted(expected)]) for each in (found, expected)
    )
    assert flat_expected.norm() > 0
    return float((flat - flat_expected).norm() / flat_expected.norm())


@pytest.mark.parametrize(
    ("ranks", "packed"),
    [
        pytest.param(1, True, marks=pytest.mark.nightly),
        (2, True),
        pytest.param(2, False, marks=pytest.mark.nightly),
        pytest.param(4, True, marks=pytest.mark.nightly),
    ],
)
def test_gradients_are_those_of_one_rank_with_padded_rows(gradients_on, ranks, packed):
    expected, found = gradients_on(1, packed=False), gradients_on(ranks, packed=packed)

    assert {loss: difference(found[loss], expected[loss]) for loss in LOSSES} == pytest.approx(
        dict.fromkeys(LOSSES, 0), abs=1e-5
    )


@pytest.mark.nightly
def test_gradients_in_bfloat16_are_those_in_float32_up_to_rounding(gradients_on):
    expected, found = gradients_on(1, packed=False), gradients_on(2, packed=True, dtype="bf16")

    differences = {loss: difference(found[loss], expected[loss]) for loss in LOSSES}
    assert {loss: 0 < error < BFLOAT16_ERROR for loss, error in differences.items()} == dict.fromkeys(LOSSES, True)
