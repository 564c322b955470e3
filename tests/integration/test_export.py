"""Exported models, compared with the trainer's, and loaded by programs that know nothing of turnmill."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from support.export_ranks import LOGITS, tokens, train_and_save
from support.exported_runs import complete, make_run
from support.fsdp_ranks import run_on_ranks, save_model
from turnmill.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

LORA = {"lora_rank": 4, "lora_alpha": 8, "target_modules": "all-linear"}
LORA_SETTINGS = {"rank": 4, "alpha": 8}

LOAD = """
import sys
import torch
from transformers import AutoTokenizer
import transformers, peft
model = getattr(transformers if sys.argv[1].startswith("AutoModel") else peft, sys.argv[1]).from_pretrained(sys.argv[2])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])
assert tokenizer.apply_chat_template([{"role": "user", "content": "go"}], tokenize=True)
assert not [name for name in sys.modules if name.startswith(("turnmill", "verl", "vllm"))]
with torch.no_grad():
    torch.save(model.eval()(input_ids=torch.load(sys.argv[3])).logits, sys.argv[4])
"""


def logits_of(folder: Path, loader: str = "AutoModelForCausalLM") -> torch.Tensor:
    """Load a folder in a process that has only transformers and PEFT, and return the logits."""
    given, found = folder.with_suffix(".tokens"), folder.with_suffix(".logits")
    torch.save(tokens(), given)
    subprocess.run([sys.executable, "-c", LOAD, loader, folder, given, found], check=True, env=dict(os.environ))
    logits: torch.Tensor = torch.load(found)
    return logits


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "initial"
    save_model(folder)
    return folder


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_exported_model_has_the_logits_of_the_trainer_whatever_the_number_of_ranks(
    model: Path, tmp_path: Path, ranks: int
):
    run_dir, actor = make_run(model, tmp_path / "run")
    other_run, in_format_of_verl = make_run(model, tmp_path / "run-of-0.1")
    actors = {"turnmill": actor, "verl": in_format_of_verl}
    run_on_ranks(train_and_save, ranks, model, actors, {}, ranks)
    expected = torch.load(model / LOGITS)
    for run in (run_dir, other_run):
        complete(run)
        assert main(["export", str(run), "--output", str(run / "model")]) == 0

        assert (logits_of(run / "model") - expected).abs().max() <= 1e-5

    assert (logits_of(model) - expected).abs().max() > 1e-3, "the training has changed nothing"
    config = json.loads((run_dir / "model/config.json").read_text())
    assert config["dtype"] == "float32"
    # Of the trainer's machine: flash attention would have to be installed wherever the model is loaded.
    assert "attn_implementation" not in config
    card = (run_dir / "model/README.md").read_text()
    assert "75.0% at step 2 (95 % interval" in card
    assert "| turns seen | 40 |" in card


def test_adapters_are_merged_or_exported_alone_with_the_logits_of_the_trainer(model: Path, tmp_path: Path):
    run_dir, actor = make_run(model, tmp_path / "run", lora=LORA_SETTINGS)
    bare_run, bare = make_run(model, tmp_path / "adapters-alone", lora=LORA_SETTINGS)
    run_on_ranks(train_and_save, 2, model, {"turnmill": actor, "adapters alone": bare}, LORA, 2)
    complete(run_dir)
    complete(bare_run)
    expected = torch.load(model / LOGITS)

    for form, loader, run in (
        ("merged", "AutoModelForCausalLM", run_dir),
        ("adapter", "AutoPeftModelForCausalLM", run_dir),
        ("adapter", "AutoPeftModelForCausalLM", bare_run),
    ):
        output = run / form
        assert main(["export", str(run), "--lora", form, "--output", str(output)]) == 0
        assert (logits_of(output, loader) - expected).abs().max() <= 1e-5

    assert (logits_of(model) - expected).abs().max() > 1e-3, "the training has changed nothing"
    assert not (run_dir / "adapter/model.safetensors").exists()
    assert "library_name: peft" in (run_dir / "adapter/README.md").read_text()
