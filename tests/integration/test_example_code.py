"""What a run of an example loads is part of the hash of its results, and the code of other agent kinds is not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "platform" / "turnmill"
EXAMPLES = ROOT / "manifests" / "examples"
COUNTED = ("training/", "rollout/", "environments/", "tasks/", "tools/")

NAMES = ["babyai-goto-cpu", "calculator-multi-turn-cpu", "sokoban-grl-cpu", "tool-arithmetic-cpu"]

# Prints as JSON what the classes of each job's run load, without its tool server. A process for each job has what takes
# long to import, which all of them use.
LOAD = """
import json, os, sys
from pathlib import Path
import verl.trainer.ppo.v1, verl.workers.engine_workers, verl.experimental.agent_loop

def load(place):
    from turnmill.core.lookup import import_object
    from turnmill.jobs.load import load_job
    from turnmill.training.agent_kinds import agent_kind

    job = load_job(Path(place))
    kind = agent_kind(job.spec.agent)
    for name in (kind.manager_path(job), kind.trainer_paths(job)[job.spec.training.mode], kind.warm_start_recipe):
        import_object(name)
    modules = [module for module in list(sys.modules.values()) if module.__name__.startswith("turnmill.")]
    print(json.dumps([place, [module.__file__ for module in modules]]), flush=True)

for place in sys.argv[1:]:
    if not (child := os.fork()):
        load(place)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, place
"""


@pytest.fixture
def files_of(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import example_code

    return lambda name: {str(file.relative_to(PACKAGE)) for file in example_code.files_of(EXAMPLES / f"{name}.yaml")}


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """The files of the package that the run of an example loads, by the example's name."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *(str(EXAMPLES / f"{name}.yaml") for name in NAMES)],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return {Path(place).stem: {str(Path(file).relative_to(PACKAGE)) for file in files} for place, files in lines}


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_what_a_run_loads_counts(files_of, loaded, name):
    counted = {file for file in loaded[name] if file.startswith(COUNTED)}

    assert len(counted) > 50
    assert counted - files_of(name) == set()


def test_other_agent_kinds_environments_and_tools_do_not_count(files_of):
    babyai, arithmetic = files_of("babyai-goto-cpu"), files_of("tool-arithmetic-cpu")

    assert {"rollout/verlog/turn_loop.py", "environments/babyai/levels.py", "jobs/verlog_agent.py"} <= babyai
    assert {"rollout/tool_agent/client.py", "tools/python_code.py", "jobs/tool_agent.py"} <= arithmetic
    assert not {"rollout/tool_agent/client.py", "tools/python_code.py", "environments/tetris.py"} & babyai
    assert not {"rollout/verlog/turn_loop.py", "tools/piston.py", "environments/babyai/levels.py"} & arithmetic


def test_the_code_of_another_kind_counts_as_far_as_it_is_imported(files_of):
    # A job of type verlog checks its stop tokens by the code of tool agents.
    assert "rollout/tool_agent/stop_tokens.py" in files_of("babyai-goto-cpu")


def test_what_all_examples_use_counts_for_each(files_of):
    common = {"training/advantages/__init__.py", "rollout/worker.py", "jobs/job.py", "tools/base.py"}
    assert all(common <= files_of(name) for name in ("babyai-goto-cpu", "tool-arithmetic-cpu", "sokoban-grl-cpu"))
