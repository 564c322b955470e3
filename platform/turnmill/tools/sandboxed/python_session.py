"""One cell of a Python session: variables are unpickled, the cell runs, variables are pickled again.

Stored sessions refer to `current_namespace`, `cached` and `cell_of` of this module, which therefore keep their names.
"""

import ast
import builtins
import functools
import io
import json
import os
import pickle
import signal
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from inspect import CO_COROUTINE
from types import CellType, CodeType, FunctionType, ModuleType, TracebackType
from typing import Any, ClassVar, NoReturn

import cloudpickle

from turnmill.tools.sandboxed import python_main
from turnmill.tools.sandboxed.packing import unpack
from turnmill.tools.sandboxed.session_result import not_kept_notice, pack_session_result
from turnmill.tools.sandboxed.workspace import restore, snapshot

VARIABLES = "vars/"
COUNT = "count"
# Immutable objects, which many variables may share and still be pickled apart.
_IMMUTABLE_TYPES = (str, bytes, int, float, complex, tuple, frozenset, type, FunctionType, ModuleType, CodeType)


class CellTimeout(BaseException):
    """The cell took too long; its changes so far are kept."""


def run(argument: bytes) -> bytes:
    """Run the part `source` with the variables and files of the part `state`."""
    parts = unpack(argument)
    limits = json.loads(parts["limits"])
    before = unpack(parts["state"])
    root = os.getcwd()
    restore(before, root)
    module = python_main.fresh_main()
    _SessionPickler.namespace = module.__dict__
    lost = _restore_variables(before, module)
    count = int(before.get(COUNT, b"0")) + 1
    report = {"lost": lost, **_run_cell(parts["source"].decode(), count, module, limits["seconds"])}
    _flush_files(module)
    python_main.flush()
    variables, forgotten = _pickled(_variables(module), limits["bytes"])
    room = limits["bytes"] - sum(map(len, variables.values()))
    files, left_out = snapshot(root, max_bytes=room, max_files=limits["files"])
    report["notice"] = not_kept_notice(forgotten + left_out)
    return pack_session_result(report, before, {COUNT: str(count).encode(), **variables, **files})


def _run_cell(source: str, count: int, module: ModuleType, seconds: float) -> dict[str, bool]:
    filename = f"<cell {count}>"
    python_main.remember_lines(source, filename)
    try:
        with _alarm(seconds):
            for code, shown in _compiled(source, filename):
                value = eval(code, module.__dict__)
                if code.co_flags & CO_COROUTINE:
                    value = _awaited(value)
                if shown and value is not None:
                    module.__dict__["_"] = value
                    print(f"Out[{count}]: {value!r}")
    except CellTimeout:
        return {"ok": False, "timed_out": True}
    except SystemExit as end:
        return {"ok": end.code in (None, 0), "timed_out": False}
    except BaseException as error:
        python_main.show(error, _outside(error.__traceback__), sys.stdout)
        return {"ok": False, "timed_out": False}
    return {"ok": True, "timed_out": False}


def _awaited(value: Any) -> Any:
    import asyncio  # Seldom needed, and as large as all other imports together.

    return asyncio.run(value)


def _outside(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the cell's first frame on."""
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<cell "):
        trace = trace.tb_next
    return trace


def _compiled(source: str, filename: str) -> Iterator[tuple[CodeType, bool]]:
    """Compile the statements, and separately a last expression, whose value is shown."""
    tree = ast.parse(source, filename)
    last = tree.body[-1] if tree.body else None
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    if isinstance(last, ast.Expr) and not source.rstrip().endswith(";"):
        tree.body.pop()
        statements = compile(tree, filename, "exec", flags, dont_inherit=True)
        expression = compile(ast.Expression(last.value), filename, "eval", flags, dont_inherit=True)
        return iter([(statements, False), (expression, True)])
    return iter([(compile(tree, filename, "exec", flags, dont_inherit=True), False)])


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def ring(*_: object) -> NoReturn:
        raise CellTimeout

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _restore_variables(state: Mapping[str, bytes], module: ModuleType) -> list[str]:
    """Unpickle the variables; return the names of those that cannot be unpickled."""
    lost = []
    for name, part in state.items():
        if not name.startswith(VARIABLES):
            continue
        try:
            module.__dict__.update(pickle.loads(part))
        except BaseException as error:
            lost.append(f"{name.removeprefix(VARIABLES)} ({type(error).__name__}: {error})")
    return lost


def _variables(module: ModuleType) -> dict[str, Any]:
    """Return the variables of the session, without names that begin and end with two underscores."""
    return {name: value for name, value in module.__dict__.items() if not (name[:2] == name[-2:] == "__")}


def _flush_files(module: ModuleType) -> None:
    """Flush open files, so that the snapshot contains everything written to them."""
    for value in list(module.__dict__.values()):
        if isinstance(value, io.IOBase):
            with suppress(Exception):
                value.flush()


def _pickled(variables: Mapping[str, Any], max_bytes: int) -> tuple[dict[str, bytes], list[str]]:
    """Pickle variables, those that share an object as one part; also return reasons for those that fail."""
    forgotten: list[str] = []
    picklers: dict[str, _SessionPickler] = {}
    for name in sorted(variables):
        try:
            picklers[name] = _SessionPickler.of({name: variables[name]})
        except Exception as error:
            forgotten.append(f"{name} ({type(variables[name]).__name__}: {_first_line(error)})")
    parts: dict[str, bytes] = {}
    room = max_bytes
    # The last value shown is often a variable's own; tied to it, both would be written whenever another is shown.
    groups = _groups({name: set() if name == "_" else pickler.objects() for name, pickler in picklers.items()})
    pickles = {
        tuple(group): picklers[group[0]].written()
        if len(group) == 1
        else _SessionPickler.of({name: variables[name] for name in group}).written()
        for group in groups
    }
    for group, written in sorted(pickles.items(), key=lambda item: (len(item[1]), item[0])):
        if len(written) > room:
            forgotten.append(f"{', '.join(group)} ({len(written):,} bytes; a session keeps {max_bytes:,})")
        else:
            room -= len(written)
            parts[VARIABLES + ", ".join(group)] = written
    return parts, forgotten


def _groups(objects: Mapping[str, set[int]]) -> list[list[str]]:
    """Group names whose sets intersect, directly or through others."""
    groups: list[tuple[list[str], set[int]]] = []
    for name, held in objects.items():
        meeting = [group for group in groups if group[1] & held]
        rest = [group for group in groups if not group[1] & held]
        names = [other for group in meeting for other in group[0]]
        groups = [*rest, (sorted([*names, name]), held.union(*(group[1] for group in meeting)))]
    return [names for names, _ in groups]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


class _Session:
    """Represents the session's namespace in a pickle, so that unpickled functions refer to it and not to a copy."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return current_namespace, ()


def current_namespace() -> dict[str, Any]:
    """Return the namespace of the session in this process."""
    return _SessionPickler.namespace


def cached(function: Any, parameters: dict[str, Any]) -> Any:
    """Return a function with an empty `functools.lru_cache`."""
    return functools.lru_cache(**parameters)(function)


class _CellKey:
    """Represents a variable of an enclosing function: all references to a key share one cell."""

    cells: ClassVar[dict[str, CellType]] = {}
    keys: ClassVar[dict[int, str]] = {}

    def __init__(self, cell: CellType) -> None:
        key = self.keys.get(id(cell)) or uuid.uuid4().hex
        self._key = self.keys[id(cell)] = key
        self.cells[key] = cell

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return cell_of, (self._key,)


def cell_of(key: str) -> CellType:
    """Return the cell of a key, which is empty at the first reference."""
    if key not in _CellKey.cells:
        cell = _CellKey.cells[key] = CellType()
        _CellKey.keys[id(cell)] = key
    return _CellKey.cells[key]


class _SessionPickler(cloudpickle.Pickler):  # type: ignore[misc,unused-ignore]
    """Pickles objects defined in the session by value, but not the session's namespace."""

    namespace: dict[str, Any] = builtins.__dict__

    @classmethod
    def of(cls, value: object) -> "_SessionPickler":
        """Return a pickler that has pickled an object."""
        pickler = cls(io.BytesIO())
        pickler.dump(value)
        return pickler

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._buffer = file
        self.globals_ref[id(self.namespace)] = _Session()

    def written(self) -> bytes:
        """The pickle."""
        return self._buffer.getvalue()

    def objects(self) -> set[int]:
        """Ids of the mutable objects in it; the pickler keeps the objects alive, so that ids stay unique."""
        memo = [held for _, held in self.memo.copy().values()]
        return {id(held) for held in memo if not isinstance(held, _IMMUTABLE_TYPES)}

    def reducer_override(self, obj: Any) -> Any:
        """Reduce objects as cloudpickle does, but without the session's variables that a function refers to."""
        if isinstance(obj, functools._lru_cache_wrapper) and obj.__module__ == "__main__":
            return cached, (obj.__wrapped__, obj.cache_parameters())
        reduced = super().reducer_override(obj)
        if not isinstance(obj, FunctionType) or reduced is NotImplemented:
            return reduced
        make, arguments, state, *rest = reduced
        if obj.__globals__ is self.namespace:
            state[1]["__globals__"] = {}
        if obj.__closure__:
            arguments = (*arguments[:-1], tuple(map(_CellKey, obj.__closure__)))
        return make, arguments, state, *rest
