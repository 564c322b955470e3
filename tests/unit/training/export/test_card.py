"""The model card of an export."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from support.jobs import tool_job
from turnmill.jobs import parse_job
from turnmill.observability.run_folder import RunFolder
from turnmill.training.export.card import model_card


@pytest.fixture
def card(tmp_path: Path) -> Any:
    """Writes the card of a run of two steps, and returns its front matter and its text."""
    run = RunFolder(tmp_path)
    run.create()

    def write(*, is_adapter: bool = False, **model: Any) -> tuple[dict[str, Any], str]:
        job = parse_job(tool_job(model=model))
        text = model_card(job, tmp_path, 2, architecture="Qwen2ForCausalLM", is_adapter=is_adapter, dtype="float32")
        _, front_matter, rest = text.split("---\n", 2)
        return yaml.safe_load(front_matter), rest

    return write


def test_only_a_model_of_the_hub_is_named_as_the_base_model(card):
    assert card(path="Qwen/Qwen2.5-0.5B")[0]["base_model"] == "Qwen/Qwen2.5-0.5B"
    assert "base_model" not in card(path="/models/Qwen2.5-0.5B")[0]
    assert "base_model" not in card(warmStart={})[0]


@pytest.mark.parametrize(
    ("is_adapter", "what", "library", "loader"),
    [
        (False, "A model", "transformers", "AutoModelForCausalLM"),
        (True, "LoRA adapters", "peft", "AutoPeftModelForCausalLM"),
    ],
)
def test_the_card_says_what_the_folder_holds_and_how_it_is_loaded(card, is_adapter, what, library, loader):
    front_matter, text = card(path="Qwen/Qwen2.5-0.5B", lora={"rank": 4, "alpha": 8}, is_adapter=is_adapter)

    assert front_matter["library_name"] == library
    assert f"\n{what} trained with reinforcement learning by turnmill, exported from the checkpoint of step 2" in text
    assert f"from {library} import {loader}\n" in text
    assert "| adapters | LoRA of rank 4, alpha 8 |" in text
