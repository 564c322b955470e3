"""Rules of this code base that no linter checks."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnmill.jobs.agent import AgentSettings
from turnmill.jobs.algorithm import AlgorithmSettings
from turnmill.jobs.base_agent import BaseAgent
from turnmill.jobs.trajectory_algorithms import TrajectoryAlgorithmSettings
from turnmill.jobs.values import sections_in, tag_of

ROOT = Path(__file__).parents[2]
SECTIONS = [*sections_in(AgentSettings), *sections_in(AlgorithmSettings)]
CLASSES = {section.__name__ for section in (*SECTIONS, BaseAgent, TrajectoryAlgorithmSettings)}
TYPES = {tag_of(section) for section in SECTIONS}
ALLOWED = {
    # Narrows the types of `spec.agent` and `spec.algorithm` for those that belong to one kind: an assertion, no branch.
    "platform/turnmill/jobs/job.py",
    # Rules over the job file in Python, each beside the same rule in CEL: the API server has no objects to ask.
    "platform/turnmill/jobs/rules.py",
    "platform/turnmill/jobs/grl_rules.py",
    "platform/turnmill/jobs/fine_tuning_rules.py",
    # GRL's configuration files, which have algorithms by name, as a job.
    "platform/turnmill/training/grl/config.py",
    # The tables.
    "platform/turnmill/training/agent_kinds/table.py",
    "platform/turnmill/training/algorithms/table.py",
}
MODULES = sorted(
    path for part in ("platform", "operator") for path in (ROOT / part).rglob("*.py")
    if str(path.relative_to(ROOT)) not in ALLOWED and "testing" not in path.parts
)  # fmt: skip


def branches(tree: ast.AST) -> Iterator[int]:
    """The lines that ask for a class of settings, or compare a `type` with the name of one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            if names(node.args[1]) & CLASSES:
                yield node.lineno
        elif isinstance(node, ast.MatchClass) and names(node.cls) & CLASSES:
            yield node.lineno
        elif isinstance(node, ast.Compare) and is_type(node.left):
            if any(words(other) & TYPES for other in node.comparators):
                yield node.lineno
        elif isinstance(node, ast.Match) and is_type(node.subject):
            yield node.lineno


def names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)} | {
        inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)
    }


def words(node: ast.AST) -> set[str]:
    return {inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant) and isinstance(inner.value, str)}


def is_type(node: ast.AST) -> bool:
    """True for `x.type` and for `values["spec.agent.type"]`."""
    if isinstance(node, ast.Attribute):
        return node.attr == "type"
    return isinstance(node, ast.Subscript) and any(word.endswith(".type") for word in words(node.slice))


@pytest.mark.parametrize(
    "source",
    [
        'if agent.type == "tool": pass',
        'if values["spec.agent.type"] in ("tool", "grl"): pass',
        "if isinstance(agent, ToolAgent | GrlAgent): pass",
        "if not isinstance(algorithm, (trajectory_algorithms.Ppo, Grpo)): pass",
        "match algorithm:\n    case Ppo(): pass",
    ],
)
def test_branches_on_a_type_are_found(source: str):
    assert list(branches(ast.parse(source)))


def test_nothing_outside_the_tables_branches_on_the_type_of_an_agent_or_an_algorithm():
    found = [f"{path.relative_to(ROOT)}:{line}" for path in MODULES for line in branches(ast.parse(path.read_text()))]

    assert found == []
