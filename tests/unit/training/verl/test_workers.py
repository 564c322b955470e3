"""Training workers, without their engines."""

from types import SimpleNamespace

import pytest
import torch
from verl.workers.engine_workers import TrainingWorker

from turnmill.training.verl.workers import CriticWorker, PolicyWorker


@pytest.mark.parametrize("kind", [CriticWorker, PolicyWorker.actor_worker_cls])
def test_new_weights_are_drawn_with_the_seed_of_the_job(kind: type[TrainingWorker], monkeypatch: pytest.MonkeyPatch):
    def start(worker: TrainingWorker, config: SimpleNamespace) -> None:
        worker.engine_config = config.engine_config

    monkeypatch.setattr(TrainingWorker, "__init__", start)

    def draw(seed: int) -> list[float]:
        kind(SimpleNamespace(engine_config=SimpleNamespace(seed=seed)))
        return torch.rand(3).tolist()

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
