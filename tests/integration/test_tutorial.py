"""The tutorial's environment and job, as the page has them."""

import re
from pathlib import Path

import pytest
import yaml

from support.training_runs import TrainingRun
from turnmill.cli.main import main
from turnmill.environments import create

PAGE = Path(__file__).parents[2] / "docs" / "tutorial-environment.md"


def block(kind: str) -> str:
    (found,) = re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a reader saves both files and runs the commands."""
    (tmp_path / "hunt.py").write_text(block("python"))
    (tmp_path / "hunt.yaml").write_text(block("yaml"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_environment_has_forty_lines(folder):
    assert len([line for line in block("python").splitlines() if line]) <= 40


def test_the_job_passes_its_check(folder, capsys):
    assert main(["check", "hunt.yaml"]) == 0
    assert "hunt trains a tiny warm-started model on hunt:Hunt" in capsys.readouterr().out


@pytest.mark.parametrize("seed", range(9))
def test_the_expert_finds_every_number_within_the_turn_limit(folder, seed):
    max_turns = yaml.safe_load(block("yaml"))["spec"]["agent"]["maxTurns"]
    environment = create("hunt:Hunt", max_turns=max_turns)
    environment.reset(seed)

    results = []
    while not results or not results[-1].terminated:
        results.append(environment.step(environment.expert().advise(None)))

    assert results[-1].reward == 1
    assert len(results) <= max_turns


@pytest.mark.nightly
@pytest.mark.slow
def test_the_job_trains_until_its_first_update(folder):
    small = ("model.warmStart={turns: 600, gradientSteps: 60, maxLoss: 10}", "training.steps=1", "environment.count=8")
    small += ("training.turnsPerStep=32", "algorithm.minibatchTurns=16", "training.validation.episodes=16")
    small += ("algorithm.criticWarmup={batches: 1, steps: 1, turnsPerStep: 32}",)
    with TrainingRun(folder / "hunt.yaml", folder / "run", {"PYTHONPATH": str(folder)}) as run:
        run.train(*(word for setting in small for word in ("--set", setting)))

    assert [row["step"] for row in run.metrics] == [0, 1]
    assert run.metrics[1]["actor/grad_norm"] > 0
