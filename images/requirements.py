"""Print what an image installs: the requirements of turnmill and of the extras that are named, one a line.

Usage: requirements.py EXTRA... ; the versions come from requirements/cpu.txt, given to pip as constraints.
"""

import sys
import tomllib
from pathlib import Path


def main(extras: list[str]) -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    lines = list(project["dependencies"])
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    print("\n".join(lines))


if __name__ == "__main__":
    main(sys.argv[1:])
