"""The agent and the job of the page on harnesses, as a reader saves them."""

import re
from pathlib import Path

import pytest
import yaml

from support.training_runs import TrainingRun
from turnmill.cli.main import main
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog
from turnmill.rollout.harness.example_agents import calculator

ROOT = Path(__file__).parents[2]
PAGE, EXAMPLES = ROOT / "docs" / "harnesses.md", ROOT / "manifests" / "examples"


def block(kind: str) -> str:
    """Return the first block of code of a kind."""
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    agent = tmp_path / "agent.py"
    agent.write_text(block("python"))
    job = tmp_path / "agent.yaml"
    job.write_text(block("yaml").replace("/home/me/agent.py", str(agent)))
    return job


def test_the_page_and_the_example_have_the_same_agent_and_job(job: Path):
    example = yaml.safe_load((EXAMPLES / "calculator-harness-cpu.yaml").read_text())
    of_page = yaml.safe_load(job.read_text())
    assert block("python") == Path(calculator.__file__).read_text()
    assert example["spec"]["agent"].pop("entryPoint") == f"{calculator.__name__}:play"
    assert of_page["spec"]["agent"].pop("entryPoint") == f"{job.with_name('agent.py')}:play"

    assert of_page["spec"] == example["spec"]


def test_the_job_of_the_page_passes_its_check(job: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["check", str(job)]) == 0
    assert "my-agent trains a tiny warm-started model on calculator" in capsys.readouterr().out


@pytest.mark.nightly
@pytest.mark.slow
def test_the_agent_of_the_page_trains_until_its_first_update(job: Path, tmp_path: Path):
    small = ("model.warmStart={turns: 600, gradientSteps: 60, maxLoss: 10}", "training.steps=1", "agent.groupSize=4")
    small += ("training.tasksPerStep=4", "algorithm.minibatchTasks=4", "training.validation.episodes=4")
    with TrainingRun(job, tmp_path / "run") as run:
        # Rewards half of all answers: there is something to learn from whatever the policy says.
        run.train(
            *(word for setting in (*small, "environment.name=support.tasks:CoinFlips") for word in ("--set", setting))
        )

    assert [row["step"] for row in run.metrics] == [0, 1]
    assert run.metrics[1]["actor/grad_norm"] > 0
    assert run.metrics[1]["training/rollout_probs_diff_mean"] < 1e-4
    assert run.metrics[1]["turnmill/token_mismatches"] == 0
    episodes = list(TrajectoryLog(RunFolder(run.folder)).read_episodes())
    assert len(episodes) == 4 + 16 + 4
    assert not [episode.failed_cause for episode in episodes if episode.failed_cause]
