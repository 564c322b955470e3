"""Files of results: one JSON object per line, oldest first, and the commit that each names."""

import json
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parents[1]
ResultT = TypeVar("ResultT")


def append_result(file: Path, result: Any) -> None:
    """Add a result, a dataclass, to a file as one line."""
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as lines:
        lines.write(json.dumps(asdict(result)) + "\n")


def read_results(file: Path, kind: type[ResultT]) -> list[ResultT]:
    """Return all results of a file; none if there is no file."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [kind(**json.loads(line)) for line in lines]


def present_commit() -> str:
    """Return the commit of the working tree, marked if anything but results has changed since."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    others = ":(exclude)benchmarks/results"
    return git("rev-parse", "--short", "HEAD") + ("-dirty" if git("status", "--porcelain", ".", others) else "")
