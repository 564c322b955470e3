import random
from pathlib import Path

import numpy as np
import pytest
import torch
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

from turnmill.training.verl.distributed_checkpoints import DistributedCheckpoints, _portable
from turnmill.training.verl.whole_weights import STATE


def manager(*, num_ranks: int) -> DistributedCheckpoints:
    """Return a manager of the first rank, without a model."""
    made = object.__new__(DistributedCheckpoints)
    made.rank, made.world_size, made.lr_scheduler = 0, num_ranks, None
    return made


def draw() -> tuple[list[float], float, float]:
    return torch.rand(3).tolist(), float(np.random.rand()), random.random()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The state of a rank's random generators, of two."""
    saved = manager(num_ranks=2)
    torch.save(_portable(saved.get_rng_state()), tmp_path / saved._rng_file)
    return tmp_path


def test_random_generators_continue_where_the_checkpoint_was_saved(checkpoint: Path):
    drawn = draw()

    manager(num_ranks=2)._load_extra(checkpoint)

    assert draw() == drawn


def test_on_another_number_of_ranks_random_generators_start_from_their_seeds(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
):
    drawn = draw()

    manager(num_ranks=1)._load_extra(checkpoint)

    assert draw() != drawn
    assert "saved by another number of ranks" in caplog.text


def test_random_generators_are_saved_with_the_state_of_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(FSDPCheckpointManager, "save_checkpoint", lambda self, *given: None)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: None)
    saving = manager(num_ranks=1)
    saving.checkpoint_save_contents, saving.checkpoint_config = ["extra"], None

    saving.save_checkpoint(str(tmp_path))
    drawn = draw()
    saving._load_extra(tmp_path / STATE)

    assert draw() == drawn


def optimizer_of(managed: DistributedCheckpoints) -> torch.optim.Optimizer:
    """Give a manager a learning rate that falls from 1 by a tenth with every step; return the optimizer."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    managed.optimizer = optimizer
    managed.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 10)
    return optimizer


def test_the_learning_rate_continues_where_the_checkpoint_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(FSDPCheckpointManager, "save_checkpoint", lambda self, *given: None)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: None)
    saving, loading = manager(num_ranks=1), manager(num_ranks=1)
    saving.checkpoint_save_contents, saving.checkpoint_config = ["extra"], None
    saved, loaded = optimizer_of(saving), optimizer_of(loading)
    for _ in range(3):
        saved.step()
        saving.lr_scheduler.step()

    saving.save_checkpoint(str(tmp_path))
    loading._load_extra(tmp_path / STATE)

    assert loaded.param_groups[0]["lr"] == pytest.approx(0.7)
    loaded.step()
    loading.lr_scheduler.step()
    assert loaded.param_groups[0]["lr"] == pytest.approx(0.6)


def test_a_checkpoint_without_the_state_of_all_ranks_is_loaded_by_verl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    loaded: list[tuple[object, ...]] = []
    monkeypatch.setattr(FSDPCheckpointManager, "load_checkpoint", lambda self, *given: loaded.append(given))

    for folder in (str(tmp_path), None):
        manager(num_ranks=2).load_checkpoint(folder)

    assert loaded == [(str(tmp_path), None, False), (None, None, False)]
