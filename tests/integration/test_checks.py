"""`turnmill check` of environments that another interpreter runs."""

import sys
from pathlib import Path

import pytest

from turnmill.cli import checks
from turnmill.jobs import JobError, load_job

EXAMPLE = Path(__file__).parents[2] / "manifests" / "examples" / "sokoban-cpu.yaml"


def problems(*overrides: str) -> list[tuple[str, str]]:
    try:
        load_job(EXAMPLE, overrides, checks=[checks.agent])
    except JobError as error:
        return [(problem.path, problem.rule) for problem in error.problems]
    return []


def test_an_environment_is_checked_in_its_own_interpreter():
    assert problems(f"environment.python={sys.executable}") == []


def test_problems_in_the_interpreter_of_an_environment_are_reported():
    ((path, rule),) = problems(f"environment.python={sys.executable}", "environment.options.size=[1, 1]")

    assert path == "spec.environment.python"
    assert "raised SettingsError: environment.options.size" in rule


@pytest.mark.parametrize("python", ["/no/such/python", __file__])
def test_an_interpreter_that_cannot_be_run_is_reported(python):
    assert problems(f"environment.python={python}") == [("spec.environment.python", "is no program that can be run")]
