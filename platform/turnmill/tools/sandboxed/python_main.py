"""Execution of a program as `__main__`, with names of the standard library as a prelude if requested."""

import builtins
import io
import linecache
import pickle
import sys
import threading
import traceback
from types import CodeType, GeneratorType, ModuleType, TracebackType
from typing import Any, TextIO

from turnmill.tools.sandboxed.packing import unpack

FILENAME = "main.py"
REACHED_END, EXITED, FAILED = b"end", b"exit", b"failed"
"""Endings of a program: after its last line, by exiting with 0, or otherwise."""

_STARS = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools",
    "functools", "operator", "io", "sys", "json", "builtins", "typing",
)  # fmt: skip
_MODULES = tuple(name for name in _STARS if name not in ("builtins", "typing"))
_MAX_FRAMES = 1000
"""Frames shown of a traceback; an endless recursion has some hundred thousand."""

_PRELUDE = "".join(f"from {name} import *\n" for name in _STARS) + f"import {', '.join(_MODULES)}\n"
_RECURSION_LIMIT = 6 * 10**5


def run(argument: bytes) -> bytes:
    """Run the part `source`, after the part `prelude` if there is one; return how it ended."""
    parts = unpack(argument)
    module = _after_prelude() if "prelude" in parts else fresh_main()
    try:
        ending = run_source(parts["source"].decode(), FILENAME, module)
        _wait_for_threads()
    finally:
        flush()
    return ending


def evaluate(argument: bytes) -> bytes:
    """Run the part `source`, then return a pickled list of the values of the expressions, which lie in lines.

    Returns nothing if the program or an expression failed, or the program ended early.
    """
    parts = unpack(argument)
    module = fresh_main()
    try:
        if run_source(parts["source"].decode(), FILENAME, module) != REACHED_END:
            return b""
        values = io.BytesIO()
        try:
            expressions = parts["expressions"].decode().splitlines()
            _ValuePickler(values, protocol=4).dump([eval(each, module.__dict__) for each in expressions])
        except BaseException as error:
            show(error, error.__traceback__.tb_next if error.__traceback__ else None)
            return b""
        _wait_for_threads()
        return values.getvalue()
    finally:
        flush()


class _ValuePickler(pickle.Pickler):
    """Pickles iterators, too, as iterators over their items."""

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, GeneratorType | map | filter | zip | reversed | enumerate):
            return iter, (list(value),)
        return NotImplemented


def fresh_main() -> ModuleType:
    """Return an empty `__main__`, as a program finds it."""
    return _as_main(_empty_module())


def _after_prelude() -> ModuleType:
    sys.setrecursionlimit(_RECURSION_LIMIT)
    return _as_main(_READY)


def _as_main(module: ModuleType) -> ModuleType:
    sys.modules["__main__"] = module
    sys.argv = [FILENAME]
    return module


def _empty_module() -> ModuleType:
    module = ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, __file__=FILENAME)
    return module


# Filled before the fork; each process runs one program, so that each program finds the same content.
_READY = _empty_module()
exec(_PRELUDE, _READY.__dict__)


def run_source(source: str, filename: str, module: ModuleType) -> bytes:
    """Run source code and return how it ended; errors are printed to stderr as Python prints them."""
    remember_lines(source, filename)
    try:
        code = compile(source, filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        show(error, None)
        return FAILED
    return _run_code(code, module)


def _run_code(code: CodeType, module: ModuleType) -> bytes:
    try:
        exec(code, module.__dict__)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
        return EXITED if end.code in (None, 0) else FAILED
    except BaseException as error:
        show(error, error.__traceback__.tb_next if error.__traceback__ else None)
        return FAILED
    return REACHED_END


def show(error: BaseException, begin: TracebackType | None, stream: TextIO | None = None) -> None:
    """Print the traceback from the first frame of the program, by default to stderr."""
    flush()
    traceback.print_exception(type(error), error, begin, limit=_MAX_FRAMES, file=stream)


def remember_lines(source: str, filename: str) -> None:
    """Make source lines that are in no file available to tracebacks."""
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)


def flush() -> None:
    """Flush standard streams, which a program may have closed or replaced."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue


def _wait_for_threads() -> None:
    """Wait for all threads, as the interpreter does at the end of a program."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
