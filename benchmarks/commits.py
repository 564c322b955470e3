"""The commit that a measurement names."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def present_commit(results: Path) -> str:
    """Return the commit of the working tree, marked if files beside `results` have changed since."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    others = f":(exclude){results.relative_to(ROOT)}"
    return git("rev-parse", "--short", "HEAD") + ("-dirty" if git("status", "--porcelain", ".", others) else "")
