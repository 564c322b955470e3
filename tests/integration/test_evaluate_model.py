"""Evaluations of a model's folder, which vLLM serves: `turnmill evaluate FOLDER`."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.training_runs import TrainingRun
from turnmill.cli.main import main
from turnmill.jobs import parse_job
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


CALCULATOR = "pkg://turnmill/rollout/multi_turn/example_tools/calculator.py"

ASK = """
import json, os, sys, urllib.request

task = json.load(sys.stdin)
body = json.dumps({"model": "policy", "messages": task["messages"], "max_tokens": 24}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as response:
    text = json.load(response)["choices"][0]["message"]["content"]
print(json.dumps({"reward": sum(map(ord, text or "")) % 7 / 7}))
"""
"""A program whose reward depends on every character of the answer."""

AGENTS: dict[str, dict[str, Any]] = {
    "multi_turn": {
        "type": "multi_turn", "functionToolPath": CALCULATOR, "maxAssistantTurns": 2, "maxPromptLength": 32,
        "maxResponseLength": 64, "tokenizationSanityCheckMode": "disable",
    },
    "harness": {
        "type": "harness", "command": ["{python}", "agent.py"], "reward": "program", "maxPromptLength": 64,
        "maxResponseLength": 64,
    },
    "grl": {
        "type": "grl", "validationAgentGroupNum": [8], "agentGroupNum": [2], "agentGroupSize": [2],
        "maxPromptLength": 768, "maxResponseLength": 28,
        "agents": [{
            "name": "sokobanAgent", "agentType": "sokobanAgent",
            "agentConfig": {"maxTurns": 3, "maxActionsAllTurns": 3, "systemPrompt": "solve the puzzle",
                            "prompt": "push the box onto the target"},
            "envConfig": {"dim_room": [6, 6], "num_boxes": 1, "view": "words"},
        }],
    },
}  # fmt: skip


def played(folder: Path) -> dict[str, list[tuple[str, float]]]:
    """Return the response and the reward of each turn of a validation, by episode."""
    found: dict[str, list[tuple[str, float]]] = {}
    for turn in TrajectoryLog(RunFolder(folder)).read_turns(validation=True):
        assert turn.failed_cause is None, turn.observation
        found.setdefault(turn.episode, []).append((turn.response, turn.reward))
    return found


@pytest.mark.parametrize("kind", AGENTS)
def test_an_evaluation_plays_what_a_validation_plays(tmp_path: Path, kind: str):
    """With the most likely tokens, the same model has the same responses and rewards as in `run --evaluate`."""
    agent = dict(AGENTS[kind])
    if kind == "harness":
        (tmp_path / "agent.py").write_text(ASK)
        agent["command"] = ["{python}", str(tmp_path / "agent.py")]
    is_grl = kind == "grl"
    spec = {
        "model": {"warmStart": {"turns": 600, "gradientSteps": 60, "maxLoss": 10}},
        "agent": agent,
        "environment": {"name": "calculator"},
        "algorithm": {"type": "grpo"},
        "training": {"steps": 0, "tasksPerStep": 4, "validation": {"episodes": 8, "temperature": 0}},
        "resources": {"device": "cpu"},
    }
    if is_grl:
        del spec["environment"]
        spec |= {"algorithm": {"type": "ppo"}, "training": {"steps": 0, "validation": {"episodes": 8}}}
    job = {"apiVersion": "turnmill.dev/v1alpha1", "kind": "AgentTrainingJob", "metadata": {"name": "job"}, "spec": spec}
    settings = parse_job(job).spec
    model = ensure_warm_start(
        SMALL, environment=settings.environment, agent=settings.agent, cache_dir=tmp_path / "cache"
    )
    spec["model"] = {"path": str(model)}
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    with TrainingRun(file, tmp_path / "run", {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}) as run:
        run.train("--evaluate")

    assert main(["evaluate", str(model), "--job", str(file), "--temperature", "0", "--output", "evaluation",
                 *(() if is_grl else ("--episodes", "8"))]) == 0  # fmt: skip

    validation = played(tmp_path / "run")
    assert len(validation) == 8
    assert played(tmp_path / "evaluation") == validation
    results = read_results(tmp_path / "evaluation")
    assert results is not None
    assert sum(attempt.reward for attempt in results.attempts) / 8 == pytest.approx(run.metrics[0]["validation/reward"])


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
