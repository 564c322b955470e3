"""Jobs of type `sft`, and models that are fine-tuned before their training."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.fine_tuning import save_conversations, save_model, write_job
from support.training_runs import TOOL_JOB, TrainingRun
from turnmill.cli.main import main
from turnmill.observability.run_folder import RunFolder
from turnmill.training.sft.rows import Rows, read_validation_rows

pytestmark = pytest.mark.slow


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
    job = write_job(tmp_path / "job.yaml", model, data)
    rows = read_validation_rows(str(data), AutoTokenizer.from_pretrained(model), 64)
    with TrainingRun(job, tmp_path / "whole") as whole, TrainingRun(job, tmp_path / "resumed") as resumed:
        whole.train()
        resumed.train("--set", "training.steps=8")
        resumed.train("--resume")

    assert main(["export", str(whole.folder), "--output", str(tmp_path / "exported")]) == 0
    steps, again = ({row["step"]: row for row in run.metrics} for run in (whole, resumed))
    assert list(steps) == list(again) == list(range(17))
    # The last of 8 steps validates, and step 8 of 16 does not.
    assert [steps[n]["train/loss"] for n in range(1, 17)] == [again[n]["train/loss"] for n in range(1, 17)]
    assert steps[0]["val/loss"] == pytest.approx(mean_loss(model, rows), abs=1e-4)
    assert steps[16]["val/loss"] == pytest.approx(mean_loss(tmp_path / "exported", rows), abs=1e-4)
    assert steps[16]["val/loss"] < 0.75 * steps[0]["val/loss"]
    assert steps[16]["train/loss_tokens"] == 8 * 2 * 2
    assert RunFolder(whole.folder).read_summary()["steps"] == 16


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
    assert "fine-tuning 1/" in second.output.read_text()
    assert "fine-tuning" not in third.output.read_text()
    assert second.metrics[0]["validation/reward"] == third.metrics[0]["validation/reward"]
    assert "model.safetensors" in {path.name for path in made.parent.iterdir()}
