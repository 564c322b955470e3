"""How a fine-tuned model is made before a training, with workers that train nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.fine_tuning import save_conversations, save_model
from support.fine_tuning_workers import IdleWorkers
from support.jobs import job
from turnmill.jobs import parse_job
from turnmill.observability.progress import Progress, read_progress
from turnmill.observability.run_folder import RunFolder, Silence
from turnmill.training.sft import fine_tuned_model, trainer
from turnmill.training.sft.fine_tuned_model import make_fine_tuned


class Making:
    """Makes a model of 36 conversations in batches of 16, and keeps the silence that is allowed at each stage."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting, self.target = RunFolder(folder / "run"), folder / "cache" / "made"
        self.silences: list[Silence | None] = []
        self._model = save_model(folder / "model")
        settings = {"data": str(save_conversations(folder / "data.jsonl")), "batchSize": 16}
        self._job = parse_job(
            job(
                model={"path": str(self._model), "fineTune": settings},
                training__timeouts={"checkpointSeconds": 77},
            )
        )
        self.waiting.create()
        monkeypatch.setattr(trainer, "start_workers", lambda *_: self._workers())
        monkeypatch.setattr(fine_tuned_model, "export", self._export)

    def make(self) -> None:
        make_fine_tuned(self._job, model=self._model, folder=self.waiting, device="cpu", target=self.target)

    def _workers(self) -> IdleWorkers:
        making = self

        class Workers(IdleWorkers):
            def train_batch(self, batch: Any) -> Any:
                making.silences.append(making.waiting.allowed_silence())
                return super().train_batch(batch)

        return Workers()

    def _export(self, own: object, run_dir: Path, made: Path) -> None:
        self.silences.append(self.waiting.allowed_silence())
        assert (run_dir / "checkpoints" / "global_step_3" / "complete.json").is_file()
        made.mkdir()


@pytest.fixture
def making(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Making:
    return Making(tmp_path, monkeypatch)


def test_a_fine_tuned_model_has_the_facts_of_its_making(making: Making):
    making.make()

    facts = json.loads((making.target / "warm_start.json").read_text())
    assert (facts["loss"], facts["rows"], facts["steps"], facts["settings"]["batchSize"]) == (3.0, 36, 3, 16)
    losses = [json.loads(line)["train/loss"] for line in (making.target / "fine_tuning.jsonl").read_text().splitlines()]
    assert losses == [1.0, 2.0, 3.0]
    assert [path.name for path in making.target.parent.iterdir()] == ["made"]


def test_the_run_that_waits_may_be_silent_while_the_trained_model_is_written(making: Making):
    making.make()

    assert making.silences == [None, None, None, Silence(77.0, "training.timeouts.checkpointSeconds")]
    assert read_progress(making.waiting) == Progress(phase="fine-tuning", done=3, total=3, message="loss 3.000")


def test_a_model_that_another_run_has_made_meanwhile_is_kept(making: Making):
    making.target.mkdir(parents=True)
    (making.target / "config.json").write_text("{}")

    making.make()

    assert [path.name for path in making.target.parent.rglob("*")] == ["made", "config.json"]
