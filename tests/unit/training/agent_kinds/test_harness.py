"""What `turnmill check` finds in jobs of agents that are programs."""

import json
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
import yaml

from support.jobs import harness_job
from turnmill.cli import checks
from turnmill.jobs import JobError, load_job
from turnmill.jobs.validation import Check
from turnmill.training.agent_kinds import harness

AGENT = """
def play(task):
    raise AssertionError("not at a check")
"""


def problems_of(changes: dict[str, Any] | None = None, check: Check = checks.agent, **agent: Any) -> list[str]:
    with NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(harness_job(agent={"type": "harness", **agent}, **(changes or {})), file)
        file.flush()
        try:
            load_job(Path(file.name), checks=[check])
        except JobError as error:
            return [str(problem) for problem in error.problems]
    return []


def test_a_function_that_can_be_loaded_is_not_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "agents.py").write_text(AGENT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    assert problems_of(entryPoint=f"{tmp_path / 'agents.py'}:play") == []
    assert problems_of(entryPoint="agents:play") == []
    assert problems_of(url="http://127.0.0.1:1/play") == []


@pytest.mark.parametrize(
    ("entry_point", "reason"),
    [
        ("agents:play", "ModuleNotFoundError: No module named 'agents'"),
        ("agent.py:play", "FileNotFoundError"),
        ("{folder}/agent.py:missing", "AttributeError: module 'agent' has no attribute 'missing'"),
        ("{folder}/broken.py:play", "SyntaxError"),
    ],
)
def test_a_function_that_cannot_be_loaded_is_a_problem(tmp_path: Path, entry_point: str, reason: str):
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "broken.py").write_text("def play(:")
    target = entry_point.format(folder=tmp_path)

    (problem,) = problems_of(entryPoint=target)

    assert problem.startswith(f"spec.agent.entryPoint: '{target[:20]}")
    assert reason in problem


def test_an_interpreter_has_modules_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "agents.py").write_text(AGENT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    (missing,) = problems_of(entryPoint="agents:play", python=sys.executable)
    (no_program,) = problems_of(entryPoint="agents:play", python=str(tmp_path / "python"))

    assert "No module named 'agents'" in missing
    assert no_program.startswith("spec.agent.python: ")
    assert "cannot be started: No such file or directory" in no_program


def test_an_import_that_does_not_end_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(harness, "IMPORT_SECONDS", 0.5)
    (tmp_path / "agent.py").write_text("import time\ntime.sleep(60)")

    (problem,) = problems_of(entryPoint=f"{tmp_path / 'agent.py'}:play")

    assert "is not loaded within 0.5 s" in problem


def test_a_module_whose_import_starts_threads_is_a_problem_for_preload_alone(tmp_path: Path):
    begin = "import threading, time\nthreading.Thread(target=time.sleep, args=[1], daemon=True, name='mine').start()\n"
    (tmp_path / "agent.py").write_text(begin + AGENT)
    target = f"{tmp_path / 'agent.py'}:play"

    (problem,) = problems_of(entryPoint=target, preload=True)

    assert problem.startswith("spec.agent.entryPoint: ")
    assert "it starts threads while it is imported, which preload would lose: mine" in problem
    assert problems_of(entryPoint=target) == []


def test_tasks_of_openenv_are_rewarded_by_the_program():
    tasks = {"name": "turnmill.openenv.tasks:OpenEnvTasks", "options": {"url": "http://127.0.0.1:1"}}
    play = "turnmill.openenv:play"

    (problem,) = [each for each in problems_of({"environment": tasks}, entryPoint=play) if "warmStart" not in each]

    assert problem.startswith("spec.agent.reward: 'task' must be program: ")
    assert not [
        each
        for each in problems_of({"environment": tasks}, entryPoint=play, reward="program")
        if "warmStart" not in each
    ]


def test_tasks_that_programs_reward_need_the_reward_of_the_program(tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"responses_create_params": {"input": "Hi."}}))
    options = {"path": str(tmp_path / "rows.jsonl"), "url": "http://127.0.0.1:8000"}
    environment = {"name": "turnmill.nemo_gym.rows:Rows", "options": options}
    settings = {"entryPoint": "turnmill.nemo_gym:simple_agent"}

    (problem,) = problems_of({"environment": environment}, **settings)

    assert problem.startswith("spec.agent.reward: 'task' must be program: ")
    assert problems_of({"environment": environment}, **settings, reward="program") == []
    assert (
        "'turnmill.nemo_gym.rows:Row'"
        in problems_of({"environment": environment | {"name": "turnmill.nemo_gym.rows:Row"}}, **settings)[0]
    )


def verifiers_problems(**environment: Any) -> list[str]:
    return problems_of({"environment": {"name": "verifiers", "task": "glossary", **environment}})


def test_an_environment_of_verifiers_is_loaded_by_its_interpreter(tmp_path: Path):
    (missing,) = verifiers_problems()
    (no_program,) = verifiers_problems(python=str(tmp_path / "python"))
    (unknown,) = verifiers_problems(options={"setings": {}})

    assert missing.startswith(
        "spec.environment.task: 'glossary' cannot be loaded: ModuleNotFoundError: No module named 'verifiers'"
    )
    assert no_program.startswith("spec.environment.python: ")
    assert "setings: verifiers has no such option. Did you mean 'settings'?" in unknown


def test_environments_of_verifiers_have_nothing_that_a_warm_start_imitates():
    changes = {"environment": {"name": "verifiers", "task": "glossary"}, "model": {"warmStart": {}}}

    (problem,) = problems_of(changes, checks.warm_start)

    assert problem.startswith("spec.model.warmStart: has nothing to imitate in environments of verifiers")


def test_verifiers_has_no_sandbox_for_the_programs_that_it_starts():
    found = problems_of({"environment": {"name": "verifiers", "task": "glossary"}, "agent__sandbox": {}})

    (problem,) = [each for each in found if each.startswith("spec.agent.sandbox")]
    assert problem.startswith("spec.agent.sandbox: is for programs, which verifiers starts itself. Take it out")
