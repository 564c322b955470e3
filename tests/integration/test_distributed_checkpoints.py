"""Checkpoints of verl's FSDP engines, saved and loaded by different numbers of ranks."""

from pathlib import Path
from typing import Any

import pytest

from support.checkpoint_ranks import load_what_verl_saved, resume_on_1_2_and_1_ranks
from support.fsdp_ranks import run_on_ranks, save_model

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

LORA = {"lora_rank": 4, "lora_alpha": 8, "target_modules": "all-linear"}


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        ("language_model", {}),
        ("value_model", {}),
        ("language_model", LORA),
    ],
    ids=["policy", "critic", "lora"],
)
def test_training_resumes_on_another_number_of_ranks(tmp_path: Path, kind: str, model: dict[str, Any]):
    save_model(tmp_path)

    run_on_ranks(resume_on_1_2_and_1_ranks, 2, tmp_path, kind, model)


def test_a_checkpoint_in_the_format_of_verl_still_loads(tmp_path: Path):
    save_model(tmp_path)

    run_on_ranks(load_what_verl_saved, 1, tmp_path)
