"""Jobs of type `sft`, and models that are fine-tuned before their training."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.fine_tuning import save_conversations, save_model, write_job
from support.training_runs import TOOL_JOB, TrainingRun
from turnmill.cli.main import main
from turnmill.training.sft.rows import Rows, read_validation_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def mean_loss(model: Path, rows: Rows) -> float:
    """Return the loss of a learned token by transformers alone."""
    loaded = AutoModelForCausalLM.from_pretrained(model).eval()
    losses = []
    for row in rows.kept:
        with torch.no_grad():
            log_probs = loaded(input_ids=torch.tensor([row.ids])).logits[0].log_softmax(-1)
        losses += [-log_probs[n - 1, row.ids[n]] for n, flag in enumerate(row.mask) if flag]
    return float(torch.stack(losses).mean())


def test_a_model_learns_conversations_and_a_resumed_run_takes_the_same_steps(tmp_path: Path):
    model, data = save_model(tmp_path / "model"), save_conversations(tmp_path / "data.jsonl")
    job = write_job(tmp_path / "job.yaml", model, data, keepCheckpoints=4)
    rows = read_validation_rows(str(data), AutoTokenizer.from_pretrained(model), 64)
    with TrainingRun(job, tmp_path / "whole") as whole, TrainingRun(job, tmp_path / "resumed") as resumed:
        whole.train()
        shutil.copytree(whole.folder, resumed.folder)
        for step in (12, 16):
            shutil.rmtree(resumed.folder / "checkpoints" / f"global_step_{step}")
        resumed.train("--resume")

    assert main(["export", str(whole.folder), "--output", str(tmp_path / "exported")]) == 0
    steps, again = ([row["train/loss"] for row in run.metrics if row["step"]] for run in (whole, resumed))
    assert len(steps) == 16
    assert steps == again
    before, after = whole.metrics[0]["val/loss"], whole.metrics[16]["val/loss"]
    assert before == pytest.approx(mean_loss(model, rows), abs=1e-4)
    assert after == pytest.approx(mean_loss(tmp_path / "exported", rows), abs=1e-4)
    assert after < 0.75 * before
    # Steps up to the checkpoint are kept, and those after it are taken again.
    assert whole.metrics[:9] == resumed.metrics[:9]
    assert whole.metrics[9]["time"] < resumed.metrics[9]["time"]


@pytest.mark.nightly
def test_a_model_is_fine_tuned_on_the_best_trajectories_of_a_run_once(tmp_path: Path):
    job = tmp_path / "job.yaml"
    job.write_text(TOOL_JOB)
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    settings = "{maxLength: 128, batchSize: 4, learningRate: 1e-3, epochs: 2, fromRun: " + str(tmp_path / "first") + "}"
    with (
        TrainingRun(job, tmp_path / "first", cache) as first,
        TrainingRun(job, tmp_path / "second", cache) as second,
        TrainingRun(job, tmp_path / "third", cache) as third,
    ):
        first.train("--set", "training.steps=1")
        for run in (second, third):
            run.train("--set", "training.steps=1", "--set", f"model.fineTune={settings}")

    (made,) = (tmp_path / "cache" / "turnmill" / "warm-start").glob("*/fine_tuning.jsonl")
    losses = [json.loads(line)["train/loss"] for line in made.read_text().splitlines()]
    record = json.loads((made.parent / "warm_start.json").read_text())
    assert losses[-1] < losses[0]
    assert record["steps"] == len(losses) == -(-2 * record["rows"] // 4)
    assert "\nfine-tuning\n" in second.output.read_text()
    assert "fine-tuning" not in third.output.read_text()
    assert second.metrics[0]["validation/reward"] == third.metrics[0]["validation/reward"]
    assert "model.safetensors" in {path.name for path in made.parent.iterdir()}
