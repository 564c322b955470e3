"""Third-party modules and classes are patched in one folder only."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATCHES = ROOT / "platform/turnmill/training/verl/patches"
OWN = ("turnmill", "turnmill_operator")


def third_party_names(tree: ast.AST) -> set[str]:
    """Names bound by an import of a third-party module."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [(alias.name, alias.asname or alias.name.partition(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [(node.module or OWN[0], alias.asname or alias.name) for alias in node.names]
        else:
            continue
        roots = ((module.partition(".")[0], name) for module, name in modules)
        names.update(name for root, name in roots if root not in OWN and root not in sys.stdlib_module_names)
    return names


def patched_objects(tree: ast.AST) -> Iterator[ast.expr]:
    """Expressions of which an attribute is assigned, deleted, or set by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
            yield node.args[0]


def root_of(expression: ast.expr) -> str:
    while isinstance(expression, ast.Attribute):
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else ""


def patches_in(source: str) -> list[int]:
    """The lines in which a module patches third-party code."""
    tree = ast.parse(source)
    foreign = third_party_names(tree)
    lines = [each.lineno for each in patched_objects(tree) if root_of(each) in foreign]
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    return lines + [node.lineno for node in imports if "unittest" in ast.unparse(node)]


def test_no_module_outside_the_folder_of_patches_patches_third_party_code():
    files = [path for folder in ("platform", "operator") for path in (ROOT / folder).rglob("*.py")]

    found = {str(path.relative_to(ROOT)): patches_in(path.read_text()) for path in files if path.parent != PATCHES}

    assert {path: lines for path, lines in found.items() if lines} == {}


def test_patches_are_recognised():
    assert patches_in("import ray.actor\nray.actor.ActorClassID = None")
    assert patches_in("from ray.runtime_context import RuntimeContext as C\nC.get_job_id = None")
    assert patches_in("import verl\nsetattr(verl, 'x', 1)")
    assert patches_in("from unittest import mock")
    assert not patches_in("import sys, turnmill\nsys.path = []\nturnmill.x = 1\nself.ray = None")
