"""Calls a function with a task: the program of agents with `entryPoint`.

PYTHON entry_point.py package.module:function < task.json

The interpreter may be of another virtual environment, so this file imports nothing of this package. The last line of
its output is the result: an object stays as it is, a number is the reward, a text is the answer.
"""

import asyncio
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path

LOAD_ONLY = "--load-only"
"""Argument after which nothing is called."""

Function = Callable[[dict[str, object]], object]


def load(target: str) -> Function:
    """Return the function `package.module:function` or `FILE.py:function`."""
    source, _, name = target.rpartition(":")
    if not source.endswith(".py"):
        return getattr(importlib.import_module(source), name)  # type: ignore[no-any-return]
    spec = importlib.util.spec_from_file_location("agent", source)
    if spec is None or spec.loader is None:
        raise ImportError(f"{source} is no module")
    module = sys.modules["agent"] = importlib.util.module_from_spec(spec)
    # As with a script, its neighbours can be imported.
    sys.path.insert(0, str(Path(source).resolve().parent))
    spec.loader.exec_module(module)
    return getattr(module, name)  # type: ignore[no-any-return]


def result_of(returned: object) -> dict[str, object]:
    """Return the result for what a function has returned. Raises TypeError for something else."""
    if returned is None:
        return {}
    if isinstance(returned, dict):
        return returned
    if isinstance(returned, str):
        return {"answer": returned}
    if isinstance(returned, (int, float)):
        return {"reward": returned}
    raise TypeError(f"it returned a {type(returned).__name__}; return an object, a number, a text or nothing")


def main() -> None:
    """Call the function that is named on the command line with the task on the standard input."""
    # Not the modules beside this file, which have common names.
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]
    function = load(sys.argv[1])
    if LOAD_ONLY in sys.argv[2:]:
        return
    returned = function(json.load(sys.stdin))
    if inspect.iscoroutine(returned):
        returned = asyncio.run(returned)
    print("\n" + json.dumps(result_of(returned)), flush=True)


if __name__ == "__main__":
    main()
