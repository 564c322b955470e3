"""When the trainer deletes episodes from the trajectory store."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from support.jobs import tool_job
from turnmill.core.errors import StoreUnavailableError
from turnmill.jobs import parse_job
from turnmill.training import checkpoints, resumable_episodes
from turnmill.training.checkpoints import RunState
from turnmill.training.resumable_episodes import ResumableEpisodes

CONFIG = OmegaConf.create({"turnmill": {"store_url": "redis://127.0.0.1:1"}})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """What the store was asked to delete."""
    made: list[dict[str, int]] = []

    async def forget(_: Any, **asked: int) -> None:
        made.append(asked)

    monkeypatch.setattr(resumable_episodes, "forget_trained", forget)
    return made


@pytest.mark.parametrize(
    ("training", "ahead"), [({}, 0), ({"training__mode": "colocate_async", "training__maxStaleness": 3}, 3)]
)
def test_what_the_newest_checkpoint_and_rollout_ahead_of_learning_need_is_kept(tmp_path: Path, asked, training, ahead):
    root = tmp_path / "checkpoints"
    with ThreadPoolExecutor(1) as executor:
        episodes = ResumableEpisodes(CONFIG, parse_job(tool_job(**training)), tmp_path, executor)
        episodes.after_step(4)
        executor.submit(lambda: None).result()
        checkpoints.folder_of(root, 5).mkdir(parents=True)
        checkpoints.complete(root, RunState(5, (), 0.0), keep=2)
        episodes.after_step(5)

    assert asked == [{"step": 4, "checkpoint": 0, "ahead": ahead}, {"step": 5, "checkpoint": 5, "ahead": ahead}]


def test_a_run_without_a_store_asks_none(tmp_path: Path, asked):
    with ThreadPoolExecutor(1) as executor:
        ResumableEpisodes(OmegaConf.create({"turnmill": {}}), parse_job(tool_job()), tmp_path, executor).after_step(4)

    assert asked == []


def test_a_store_that_does_not_answer_is_asked_once_at_a_time_and_holds_no_step(tmp_path: Path, monkeypatch):
    away, asked = threading.Event(), []

    async def forget(_: Any, *, step: int, **__: int) -> None:
        asked.append(step)
        away.wait(30)
        raise StoreUnavailableError("no answer")

    monkeypatch.setattr(resumable_episodes, "forget_trained", forget)
    with ThreadPoolExecutor(1) as executor:
        episodes = ResumableEpisodes(CONFIG, parse_job(tool_job()), tmp_path, executor)
        for step in (1, 2, 3):
            episodes.after_step(step)
        away.set()
        executor.submit(lambda: None).result()
        episodes.after_step(4)

    assert asked == [1, 4]
