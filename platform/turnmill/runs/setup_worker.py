"""Sets a Ray worker's variables and executes its interpreter, as Ray's script of this name, which imports Ray for it.

Ray starts it with its own arguments: `[--serialized-runtime-env-context=JSON] --language=PYTHON SCRIPT ARGUMENT...`.
What it does not know is left to Ray's script, which lies beside SCRIPT.
"""

import json
import os
import shlex
import sys

_CONTEXT, _LANGUAGE = "--serialized-runtime-env-context=", "--language=PYTHON"
_KNOWN = {"env_vars", "py_executable"}


def main(arguments: "list[str]") -> None:
    """Execute the worker."""
    worker = [each for each in arguments if not each.startswith((_CONTEXT, _LANGUAGE))]
    given = [json.loads(each[len(_CONTEXT) :]) for each in arguments if each.startswith(_CONTEXT)]
    context = given[0] if given else {}
    variables = context.get("env_vars") or {}
    if (
        _LANGUAGE not in arguments
        or any(value for name, value in context.items() if name not in _KNOWN)
        or any("$" in value for value in variables.values())
    ):
        # The first one that is no option is Ray's script of a worker.
        script = next(each for each in worker if not each.startswith("-"))
        rays = os.path.join(os.path.dirname(script), os.path.basename(__file__))  # noqa: PTH118, PTH119, PTH120
        os.execv(sys.executable, [sys.executable, rays, *arguments])
    os.environ.update(variables)
    command = [*shlex.split(context.get("py_executable") or shlex.quote(sys.executable)), *worker]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
