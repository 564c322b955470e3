"""Print pins of packages with the SHA-256 of their files, as `--require-hashes` needs them.

Usage: hashed.py PINS [NAME...] ; only the packages that are named, or all. `-` reads pins from standard input.
"""

import re
import sys
from pathlib import Path

HASHES = Path(__file__).with_name("hashes.txt")


def plain(name: str) -> str:
    """A distribution's name as it is compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(text: str) -> dict[str, str]:
    """Return the requirements of a file by their plain names, each with its hashes, if it has any."""
    lines = text.replace("\\\n", " ").splitlines()
    return {plain(line.partition("==")[0]): line for line in lines if "==" in line}


def main(pins: str, *names: str) -> None:
    known = pinned(HASHES.read_text())
    wanted = pinned(sys.stdin.read() if pins == "-" else Path(pins).read_text())
    chosen = [plain(name) for name in names] or list(wanted)
    for name in chosen:
        requirement = wanted[name].split()[0]
        version, *hashes = known.get(name, "").split() or [""]
        if version.partition("==")[2] != requirement.partition("==")[2]:
            sys.exit(f"{HASHES.name} has no hashes of {requirement}: `make lock` adds them")
        print(requirement, *hashes)


if __name__ == "__main__":
    main(*sys.argv[1:])
