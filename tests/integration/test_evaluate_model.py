"""Evaluations of a model's folder, which vLLM serves: `turnmill evaluate FOLDER`."""

from pathlib import Path

import pytest

from turnmill.cli.main import main
from turnmill.jobs.environment import EnvironmentSettings
from turnmill.jobs.model import WarmStart
from turnmill.jobs.tool_agent import ToolAgent
from turnmill.jobs.verlog_agent import VerlogAgent
from turnmill.observability.evaluation import read_results
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog
from turnmill.runs import processes
from turnmill.training.warm_start import ensure_warm_start

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]

SMALL = WarmStart(turns=600, gradient_steps=60, max_loss=10)


@pytest.fixture(autouse=True)
def _in_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)


def test_a_folder_is_evaluated_with_the_tokens_and_tools_of_training(tmp_path: Path):
    """The tiny model of a tool job plays twice, with the same tokens: its prompts, seeds and tools are the same."""
    model = ensure_warm_start(
        SMALL,
        environment=EnvironmentSettings(name="arithmetic"),
        agent=ToolAgent(stop_tokens=("</python>",)),
        cache_dir=tmp_path / "cache",
    )
    settings = [
        *("agent.stopTokens=[</python>]", "agent.maxTurns=1", "agent.maxPromptLength=32", "agent.maxResponseLength=48"),
        *("agent.maxActionLength=16", "agent.maxObsLength=16", "environment.count=8"),
    ]
    overrides = [word for setting in settings for word in ("--set", setting)]
    arguments = ["--environment", "arithmetic", "--episodes", "8", "--samples", "2", *overrides]

    for output in ("first", "second"):
        assert main(["evaluate", str(model), *arguments, "--output", output]) == 0

    results = [read_results(Path(output)) for output in ("first", "second")]
    assert results[0] is not None
    assert results[1] is not None
    assert results[0].attempts == results[1].attempts
    assert results[0].failures() == {}
    turns = list(TrajectoryLog(RunFolder("first")).read_turns(validation=True))
    assert len({turn.episode for turn in turns}) == 16
    assert all(turn.response_ids for turn in turns)
    assert any(turn.observation for turn in turns), "no tool was called"
    assert len({turn.response_ids for turn in turns}) > 1
    assert not (Path("first") / processes.RECORD).exists()


def test_vllm_that_does_not_start_is_told_with_the_end_of_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model = ensure_warm_start(
        SMALL,
        environment=EnvironmentSettings(name="babyai", task="GoToObj"),
        agent=VerlogAgent(prompt="compact"),
        cache_dir=tmp_path / "cache",
    )

    assert main(["evaluate", str(model), "--environment", "babyai", "--vllm", "--no-such-flag", "--output", "a"]) == 1

    message = capsys.readouterr().err
    assert "vLLM did not start (exit code 2)" in message
    assert "--no-such-flag" in message
