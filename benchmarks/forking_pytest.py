"""Runs pytest in forks of one process that has made the imports which take longest, and which no mutant changes.

.venv/bin/python benchmarks/forking_pytest.py FILE

It reads one JSON array of pytest's arguments a line, and answers each with a line that has pytest's exit code. What
pytest prints goes to FILE. `benchmarks/mutants.py` starts it.
"""

import contextlib
import importlib
import json
import os
import sys

# verl would import the files of turnmill that are its plug-in.
IMPORTS = (
    *("aiohttp", "datasets", "fastapi", "hydra", "hypothesis", "peft", "pytest", "ray", "redis.asyncio"),
    *("tensordict", "torch", "transformers", "uvicorn"),
)


def main() -> None:
    """Answer until the end of the input."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    output = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    for name in IMPORTS:
        importlib.import_module(name)
    assert "turnmill" not in sys.modules
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _run(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers)


def _run(arguments: list[str]) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    code = 70
    with contextlib.suppress(BaseException):
        code = int(sys.modules["pytest"].main(arguments))
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
