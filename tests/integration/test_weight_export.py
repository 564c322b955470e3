from pathlib import Path

import pytest

from support import weight_export_ranks
from support.fsdp_ranks import run_on_ranks, save_model

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.nightly), 2])
@pytest.mark.parametrize("dtype", [pytest.param("fp32", marks=pytest.mark.nightly), "bf16"])
def test_engines_get_the_weights_in_the_type_in_which_the_policy_computes(tmp_path: Path, dtype: str, ranks: int):
    save_model(tmp_path)

    run_on_ranks(weight_export_ranks.export, ranks, tmp_path, ranks, dtype)
