"""Judges values that an untrusted program computed, in a process in which the program does not run."""

import importlib
import io
import pickle
import traceback
from typing import Any

from turnmill.tools.sandboxed.packing import unpack

HOLDS, FAILS = b"holds", b"fails"
"""Verdicts; any other result is the text of an error."""

_PLAIN = frozenset(
    {
        *(("builtins", name) for name in ("set", "frozenset", "complex", "bytearray", "range", "slice", "iter")),
        *(("collections", name) for name in ("deque", "Counter", "OrderedDict", "defaultdict")),
        *(("datetime", name) for name in ("date", "datetime", "time", "timedelta", "timezone")),
        ("decimal", "Decimal"),
        ("fractions", "Fraction"),
        *(("numpy", name) for name in ("dtype", "ndarray")),
        *(("numpy._core.multiarray", name) for name in ("_reconstruct", "scalar")),
        *(("numpy.core.multiarray", name) for name in ("_reconstruct", "scalar")),
    }
)
"""Classes of values; none of them runs code of a program."""


def run(argument: bytes) -> bytes:
    """Evaluate the part `condition` on the pickled list `values`, with the modules in `modules`."""
    parts = unpack(argument)
    try:
        values = _Values(io.BytesIO(parts["values"])).load()
        names: dict[str, Any] = {f"value_{number}": value for number, value in enumerate(values)}
        for module in parts["modules"].decode().split():
            names[module] = importlib.import_module(module)
        return HOLDS if eval(parts["condition"].decode(), names) else FAILS
    except Exception as error:
        return "".join(traceback.format_exception_only(error)).encode("utf-8", "replace")


class _Values(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _PLAIN:
            raise TypeError(f"a value of type {name} cannot be compared outside of the program")
        return super().find_class(module, name)
