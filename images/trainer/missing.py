"""Print the pins that an image lacks, one a line: of packages that it has no version of. Those of development and of
commands for jobs in a cluster are left out.

Usage: missing.py PINS [NAME...] ; every NAME is left out as well.
"""

import re
import sys
from importlib.metadata import distributions
from pathlib import Path

DEVELOPMENT = (
    "ast-serialize", "babel", "backrefs", "colorama", "execnet", "ghp-import", "greenlet", "griffe-pydantic",
    "griffelib", "grimp", "harfile", "hatchling", "hypothesis", "hypothesis-graphql", "import-linter", "iniconfig",
    "jsonschema-rs", "librt", "mergedeep", "mkdocs", "mkdocs-autorefs", "mkdocs-get-deps", "mkdocs-material",
    "mkdocs-material-extensions", "mkdocstrings", "mkdocstrings-python", "mypy", "mypy-extensions", "paginate",
    "pathspec", "playwright", "pymdown-extensions", "pyrate-limiter", "pytest", "pytest-asyncio", "pytest-timeout",
    "pytest-xdist", "pyyaml-env-tag", "ruff", "schemathesis", "trove-classifiers", "types-pyyaml", "watchdog",
)  # fmt: skip
COMMANDS_IN_A_CLUSTER = (
    "aiohttp-retry", "durationpy", "kubernetes", "oauthlib", "requests-oauthlib", "websocket-client",
)  # fmt: skip


def plain(name: str) -> str:
    """A distribution's name as it is compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main(pins: str, *left_out: str) -> None:
    unwanted = {plain(name) for name in (*DEVELOPMENT, *COMMANDS_IN_A_CLUSTER, *left_out)}
    present = {plain(found.name) for found in distributions()} | unwanted
    lines = Path(pins).read_text().splitlines()
    print("\n".join(line for line in lines if plain(line.partition("==")[0]) not in present))


if __name__ == "__main__":
    main(*sys.argv[1:])
