"""The trainer of a fine-tuning, whose workers train nothing."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from support.fine_tuning import save_model
from support.fine_tuning_workers import IdleWorkers
from support.jobs import sft_job
from turnmill.core.errors import RunFailedError
from turnmill.jobs import parse_job
from turnmill.observability.run_folder import RunFolder
from turnmill.training.sft import trainer
from turnmill.training.sft.trainer import SftTrainer

ANSWERS = (" 1", " 2 plus 3", " 4", " what is 5 plus 6 plus 7", " 8 plus")
TOO_LONG = " 9" * 40


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


def write(file: Path, answers: Sequence[str]) -> Path:
    rows = [{"messages": [{"role": "assistant", "content": answer}]} for answer in answers]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


class Run:
    """A run that learns five answers."""

    def __init__(self, folder: RunFolder, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.data = folder, folder.path / "data.jsonl"
        self._model, self._monkeypatch = model, monkeypatch
        folder.create()
        write(self.data, (*ANSWERS, TOO_LONG))

    def trainer(self, workers: IdleWorkers, **changes: Any) -> SftTrainer:
        """Begin an attempt with these workers."""
        own = {"data": str(self.data), "batchSize": 2, "maxLength": 32}
        job = parse_job(sft_job(**{f"algorithm__{name}": value for name, value in own.items()} | changes))
        self._monkeypatch.setattr(trainer, "start_workers", lambda *_: workers)
        return SftTrainer(job, model=self._model, run_dir=self.folder.path, device="cpu")

    def logged(self, name: str) -> list[tuple[int, float]]:
        """Return the steps that have a metric, with its values."""
        return [(row["step"], row[name]) for row in self.folder.read_metrics() if name in row]

    @property
    def saved(self) -> list[str]:
        """Steps with a complete checkpoint."""
        return sorted(marker.parent.name for marker in self.folder.checkpoints.glob("*/complete.json"))


@pytest.fixture
def run(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(RunFolder(tmp_path), model, monkeypatch)


def ids(batch: TensorDict) -> list[list[int]]:
    return [row.tolist() for row in batch["input_ids"].unbind()]


def num_learned(batches: Sequence[TensorDict]) -> list[int]:
    return [int(batch["loss_mask"].values().sum()) for batch in batches]


def test_each_step_is_taken_once_and_measured_and_those_that_are_due_are_saved(run: Run):
    workers, told = IdleWorkers(), []
    training = {"training__steps": 5, "training__checkpointEvery": 2, "training__keepCheckpoints": 9}

    run.trainer(workers, **training).fit(lambda step, steps, metrics: told.append((step, steps, metrics["train/loss"])))

    assert told == [(step, 5, step) for step in range(1, 6)]
    assert run.logged("train/loss") == [(step, step) for step in range(1, 6)]
    assert run.logged("train/epoch") == [(step, step * 2 / 5) for step in range(1, 6)]
    assert [tokens for _, tokens in run.logged("train/loss_tokens")] == num_learned(workers.trained)
    assert [tokens for _, tokens in run.logged("train/global_tokens")] == [
        sum(map(len, ids(batch))) for batch in workers.trained
    ]
    assert run.logged("train/rows_too_long")[0] == (1, 1)
    assert run.saved == ["global_step_2", "global_step_4", "global_step_5"]


def test_a_resumed_run_takes_the_steps_after_its_checkpoint_on_the_same_rows(run: Run):
    whole, resumed = IdleWorkers(validation_losses=[1.0] * 9), IdleWorkers(validation_losses=[1.0] * 3)
    settings = {
        "algorithm__validationData": str(run.data),
        "training__steps": 4,
        "training__checkpointEvery": 2,
        "training__validation": {"every": 2},
    }
    run.trainer(whole, **settings).fit()
    shutil.rmtree(run.folder.checkpoints / "global_step_4")
    run.folder.truncate_after(2)
    told: list[int] = []

    run.trainer(resumed, **settings).fit(lambda step, *_: told.append(step))

    assert resumed.loaded == ["2"]
    assert told == [3, 4]
    assert [ids(batch) for batch in resumed.trained] == [ids(batch) for batch in whole.trained[2:]]
    assert [step for step, _ in run.logged("val/loss")] == [0, 2, 4]


def test_the_loss_of_a_validation_is_that_of_a_mean_token(run: Run):
    losses = [0.5, 2.0, 4.0]
    workers = IdleWorkers(validation_losses=losses * 2)

    begun = run.trainer(workers, algorithm__validationData=str(run.data), training__steps=1)
    begun.fit()

    # The last batch is filled with a row that is not learned.
    assert [len(ids(batch)) for batch in workers.validated] == [2] * 6
    counts = num_learned(workers.validated[:3])
    assert sum(counts) == sum(sum(row.mask) for row in begun.validation_rows.kept)
    assert num_learned(workers.validated[3:]) == counts
    assert len(set(counts)) > 1
    mean = sum(count * loss for count, loss in zip(counts, losses, strict=True)) / sum(counts)
    assert run.logged("val/loss") == [(0, pytest.approx(mean)), (1, pytest.approx(mean))]


@pytest.mark.parametrize(("epochs", "steps", "taken"), [(1, 20, 3), (2, 20, 5), (2, 4, 4), (None, 7, 7)])
def test_a_run_ends_after_its_epochs_or_its_steps(run: Run, epochs: int | None, steps: int, taken: int):
    begun = run.trainer(IdleWorkers(), algorithm__epochs=epochs, training__steps=steps)

    assert (begun.steps, begun.recorder.steps, begun.config.optim.total_training_steps) == (taken,) * 3


def test_workers_have_as_many_rows_each_and_about_as_many_tokens(run: Run):
    answers, workers = [" 1" * number for number in (12, 5, 2, 1)], IdleWorkers(number=2)
    data = write(run.folder.path / "uneven.jsonl", answers)

    run.trainer(workers, algorithm__data=str(data), algorithm__batchSize=4, training__steps=4).fit()

    for batch in workers.trained:
        lengths = [len(row) for row in ids(batch)]
        # An answer has two tokens more: without as many rows each, the longest alone would be a half.
        assert sorted((sum(lengths[:2]), sum(lengths[2:]))) == [7 + 4, 14 + 3]
        assert tu.get(batch, "global_token_num") == lengths
        assert [row.tolist() for row in batch["position_ids"].unbind()] == [list(range(length)) for length in lengths]


def test_a_checkpoint_that_cannot_be_written_ends_the_run(run: Run, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    workers = IdleWorkers()
    monkeypatch.setattr(workers, "save_checkpoint", refuse)

    with pytest.raises(RunFailedError, match=r"checkpoint of step 1 could not be written.*the disk is full"):
        run.trainer(workers, training__steps=1).fit()
    assert run.logged("train/loss") == []
