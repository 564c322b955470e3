"""Adding a built-in agent kind or algorithm, on a copy of the package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import turnmill.jobs

PACKAGE = Path(turnmill.jobs.__file__).parents[1]
ALGORITHM = """
from typing import Literal

from turnmill.jobs.trajectory_algorithms import KlSettings, TrajectoryAlgorithmSettings


class Added(TrajectoryAlgorithmSettings):
    "An algorithm."

    implementation = "turnmill.training.algorithms.grpo:GrpoAlgorithm"

    type: Literal["added"] = "added"
    "`added`."

    kl: KlSettings = KlSettings()
    "The penalty."
"""
AGENT = """
from typing import Literal

from turnmill.jobs.tool_agent import ToolAgent


class Added(ToolAgent):
    "An agent loop."

    implementation = "turnmill.training.agent_kinds.tool:ToolKind"

    type: Literal["added"] = "added"
    "`added`."
"""
USE = """
import sys
from turnmill.jobs import parse_job
from turnmill.jobs.crd import crd_yaml

algorithm = {{"type": "grpo", "kl": {{"coefficient": 0}}}}
agent = {{"type": "tool", "groupSize": 2, "enableMtrl": True}}
{section} |= {{"type": "added"}}
job = parse_job({{
    "apiVersion": "turnmill.dev/v1alpha1", "kind": "AgentTrainingJob", "metadata": {{"name": "added"}},
    "spec": {{
        "model": {{"warmStart": {{}}}}, "agent": agent, "algorithm": algorithm, "environment": {{"name": "arithmetic"}},
        "training": {{"steps": 1, "tasksPerStep": 2}}, "resources": {{"device": "cpu"}},
    }},
}})
assert "|added|" in crd_yaml()
assert "torch" not in sys.modules and "turnmill.training" not in sys.modules
from turnmill.training.{table} import {function}
print(type({function}(job.spec.{section})).__name__)
"""


@pytest.mark.parametrize(
    ("section", "source", "use", "expected"),
    [
        ("algorithm", ALGORITHM, ("algorithms", "algorithm_of"), "GrpoAlgorithm"),
        ("agent", AGENT, ("agent_kinds", "agent_kind"), "ToolKind"),
    ],
)
def test_adding_a_built_in_type_takes_one_new_file_and_one_table_entry(tmp_path, section, source, use, expected):
    copy = tmp_path / "turnmill"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "jobs" / "added.py").write_text(source)
    table = copy / "jobs" / f"{section}.py"
    entry = '    | Annotated[Added, Tag("added")]\n'
    plugin = f"    | Annotated[Plugin{section.title()}, Tag(PLUGIN)],\n"
    text = table.read_text().replace(plugin, entry + plugin)
    table.write_text(
        text.replace("from pydantic import", "from turnmill.jobs.added import Added\nfrom pydantic import", 1)
    )

    code = USE.format(section=section, table=use[0], function=use[1])
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )

    assert result.stderr == ""
    assert result.stdout.strip() == expected
