"""A program that runs as `__main__`, with names of the standard library at hand if it wants them."""

import builtins
import linecache
import sys
import threading
import traceback
from importlib import import_module
from types import CodeType, ModuleType, TracebackType
from typing import TextIO

from turnmill.tools.sandboxed.parts import unpack

FILENAME = "main.py"
REACHED_END, EXITED, FAILED = b"end", b"exit", b"failed"
"""How a program ended: after its last line, by exiting with 0, or otherwise."""

_STARS = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools",
    "functools", "operator", "io", "sys", "json", "builtins", "typing",
)  # fmt: skip
_MODULES = tuple(name for name in _STARS if name not in ("builtins", "typing"))
_MAX_FRAMES = 1000
"""Shown of a traceback; a recursion without end has some hundred thousand."""

for _name in _STARS:
    import_module(_name)  # Once, in the process that is forked.
_PRELUDE = compile(
    "".join(f"from {name} import *\n" for name in _STARS)
    + f"import {', '.join(_MODULES)}\nsys.setrecursionlimit(6 * 10**5)\n",
    "<prelude>",
    "exec",
)


def run(argument: bytes) -> bytes:
    """Run the part `source`, after the prelude if there is a part `prelude`; answer how it ended."""
    parts = unpack(argument)
    module = fresh_main()
    if "prelude" in parts:
        exec(_PRELUDE, module.__dict__)
    try:
        ending = run_source(parts["source"].decode(), FILENAME, module)
        _wait_for_threads()
    finally:
        flush()
    return ending


def fresh_main() -> ModuleType:
    """An empty `__main__`, as a program finds it."""
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    module.__dict__["__file__"] = FILENAME
    sys.modules["__main__"] = module
    sys.argv = [FILENAME]
    return module


def run_source(source: str, filename: str, module: ModuleType) -> bytes:
    """Run it; what goes wrong is shown on stderr, as Python itself shows it."""
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
    """Print the traceback from where the program's own frames begin, on stderr unless told otherwise."""
    flush()
    traceback.print_exception(type(error), error, begin, limit=_MAX_FRAMES, file=stream)


def remember_lines(source: str, filename: str) -> None:
    """Let tracebacks quote source that is in no file."""
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)


def flush() -> None:
    """Write out what is buffered; a program may have closed or replaced its streams."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue


def _wait_for_threads() -> None:
    """A program ends when its last thread ends."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
