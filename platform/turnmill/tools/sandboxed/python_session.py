"""One cell of a Python session: variables are unpickled, the cell runs, variables are pickled again."""

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
from turnmill.tools.sandboxed.answers import not_kept, pack_answer
from turnmill.tools.sandboxed.parts import unpack
from turnmill.tools.sandboxed.workspace import restore, snapshot

VARIABLES = "vars/"
COUNT = "count"
# What many variables may hold without being one another's affair.
_SHARED_SAFELY = (str, bytes, int, float, complex, tuple, frozenset, type, FunctionType, ModuleType, CodeType)


class TimeIsUp(BaseException):
    """The cell took too long; what it did until then stays."""


def run(argument: bytes) -> bytes:
    """Run the part `source` on the part `state`."""
    parts = unpack(argument)
    limits = json.loads(parts["limits"])
    before = unpack(parts["state"])
    root = os.getcwd()
    restore(before, root)
    module = python_main.fresh_main()
    _Memory.namespace = module.__dict__
    lost = _remember(before, module)
    count = int(before.get(COUNT, b"0")) + 1
    report = {"lost": lost, **_run_cell(parts["source"].decode(), count, module, limits["seconds"])}
    _flush_files(module)
    python_main.flush()
    variables, forgotten = _pickled(_variables(module), limits["bytes"])
    room = limits["bytes"] - sum(map(len, variables.values()))
    files, left_out = snapshot(root, max_bytes=room, max_files=limits["files"])
    report["notice"] = not_kept(forgotten + left_out)
    return pack_answer(report, before, {COUNT: str(count).encode(), **variables, **files})


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
    except TimeIsUp:
        return {"ok": False, "timed_out": True}
    except SystemExit as end:
        return {"ok": end.code in (None, 0), "timed_out": False}
    except BaseException as error:
        python_main.show(error, _outside(error.__traceback__), sys.stdout)
        return {"ok": False, "timed_out": False}
    return {"ok": True, "timed_out": False}


def _awaited(value: Any) -> Any:
    import asyncio  # Seldom needed, and as large as all the rest of what is imported here.

    return asyncio.run(value)


def _outside(trace: TracebackType | None) -> TracebackType | None:
    """The trace from the first frame that is the cell's."""
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<cell "):
        trace = trace.tb_next
    return trace


def _compiled(source: str, filename: str) -> Iterator[tuple[CodeType, bool]]:
    """The statements, and apart from them a last expression, whose value is shown."""
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
        raise TimeIsUp

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _remember(state: Mapping[str, bytes], module: ModuleType) -> list[str]:
    """Put the variables back; the names of those that cannot be."""
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
    """What the session defined; names with two underscores at both ends are Python's own."""
    return {name: value for name, value in module.__dict__.items() if not (name[:2] == name[-2:] == "__")}


def _flush_files(module: ModuleType) -> None:
    """What was written to a file that is still open belongs to the file."""
    for value in list(module.__dict__.values()):
        if isinstance(value, io.IOBase):
            with suppress(Exception):
                value.flush()


def _pickled(variables: Mapping[str, Any], max_bytes: int) -> tuple[dict[str, bytes], list[str]]:
    """Each variable as a part, those that hold one object in common as one; and what cannot be kept, with why."""
    forgotten: list[str] = []
    picklers: dict[str, _Memory] = {}
    for name in sorted(variables):
        try:
            picklers[name] = _Memory.of({name: variables[name]})
        except Exception as error:
            forgotten.append(f"{name} ({type(variables[name]).__name__}: {_first_line(error)})")
    parts: dict[str, bytes] = {}
    room = max_bytes
    # The last value shown is often a variable's own; tied to it, both would be written whenever another is shown.
    groups = _groups({name: set() if name == "_" else pickler.objects() for name, pickler in picklers.items()})
    pickles = {
        tuple(group): picklers[group[0]].written()
        if len(group) == 1
        else _Memory.of({name: variables[name] for name in group}).written()
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
    """Names whose sets meet, directly or through others, together."""
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
    """Stands for the session's namespace in a pickle, so that functions come back to it and not to a copy."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return current_namespace, ()


def current_namespace() -> dict[str, Any]:
    """The namespace of the session that runs in this process."""
    return _Memory.namespace


def cached(function: Any, parameters: dict[str, Any]) -> Any:
    """A function with an empty cache, as `functools.lru_cache` makes it."""
    return functools.lru_cache(**parameters)(function)


class _CellKey:
    """Stands for a variable of an enclosing function: whoever names the same key gets the same cell."""

    cells: ClassVar[dict[str, CellType]] = {}
    keys: ClassVar[dict[int, str]] = {}

    def __init__(self, cell: CellType) -> None:
        key = self.keys.get(id(cell)) or uuid.uuid4().hex
        self._key = self.keys[id(cell)] = key
        self.cells[key] = cell

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return cell_of, (self._key,)


def cell_of(key: str) -> CellType:
    """The cell of that key, empty if nobody has named it before."""
    if key not in _CellKey.cells:
        cell = _CellKey.cells[key] = CellType()
        _CellKey.keys[id(cell)] = key
    return _CellKey.cells[key]


class _Memory(cloudpickle.Pickler):
    """Pickles what is defined in the session by value, and leaves the session's namespace out of it."""

    namespace: dict[str, Any] = builtins.__dict__

    @classmethod
    def of(cls, value: object) -> "_Memory":
        """A pickler that has pickled it."""
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
        """Ids of the objects in it that can change; the pickler keeps them alive, and with them their ids apart."""
        memo = [held for _, held in self.memo.copy().values()]
        return {id(held) for held in memo if not isinstance(held, _SHARED_SAFELY)}

    def reducer_override(self, obj: Any) -> Any:
        """As cloudpickle does, but without the values of the session's variables that a function names."""
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
