import os
from pathlib import Path

import pytest

from support.jobs import job
from turnmill.jobs import AgentTrainingJob, parse_job
from turnmill.observability.run_folder import RunFolder
from turnmill.training.sft.cache import cache_key


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "data.jsonl"
    file.write_text("one\n")
    return file


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def of(**settings: object) -> AgentTrainingJob:
    return parse_job(job(model={"warmStart": {}, "fineTune": settings}))


def test_the_same_fine_tuning_is_found_again_wherever_its_data_are(tmp_path: Path, data: Path, model: Path):
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(data.read_bytes())

    assert cache_key(of(data=str(data)), model, "cpu") == cache_key(of(data=str(copy)), model, "cpu")


def test_whatever_makes_the_model_gives_it_another_name(data: Path, model: Path):
    first = cache_key(of(data=str(data)), model, "cpu")
    others = [cache_key(of(data=str(data), epochs=2), model, "cpu"), cache_key(of(data=str(data)), model, "cuda")]
    data.write_text("two\n")
    others.append(cache_key(of(data=str(data)), model, "cpu"))
    os.utime(model / "config.json", (1, 1))
    others.append(cache_key(of(data=str(data)), model, "cpu"))

    assert len({first, *others}) == 5


def test_more_trajectories_of_a_run_make_another_model(tmp_path: Path, model: Path):
    run = RunFolder(tmp_path / "run")
    run.create()
    run.write_job("{}")
    before = cache_key(of(fromRun=str(run.path)), model, "cpu")
    (run.trajectories / "turns-1.jsonl").write_text("{}")

    assert cache_key(of(fromRun=str(run.path)), model, "cpu") != before


def test_data_that_are_gone_are_an_error(tmp_path: Path, model: Path):
    with pytest.raises(OSError, match="none"):
        cache_key(of(data=str(tmp_path / "none.jsonl")), model, "cpu")
