"""A hash of what Python code does: comments, docstrings and layout do not change it."""

import ast
import hashlib
from collections.abc import Iterable
from pathlib import Path

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def hash_code(folders: Iterable[Path]) -> str:
    """Return the SHA-256 of all Python files in folders (or files) and their places there, as 64 hexadecimal digits."""
    total = hashlib.sha256()
    for folder in folders:
        files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]
        for file in files:
            place = file.relative_to(folder).as_posix() if folder.is_dir() else file.name
            total.update(f"{folder.name}/{place}\n{_dump(file)}\n".encode())
    return total.hexdigest()


def _dump(file: Path) -> str:
    tree = ast.parse(file.read_bytes(), str(file))
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED):
            # Strings on their own are docstrings of fields, or documentation of the module.
            node.body = [statement for statement in node.body if not _is_text(statement)] or [ast.Pass()]
    return ast.dump(tree)


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
