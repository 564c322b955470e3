"""How a task's program runs in its process, once that is confined: as a fresh interpreter would run it."""

import atexit
import builtins
import contextlib
import gc
import importlib
import io
import linecache
import os
import signal
import struct
import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any, NoReturn

from turnmill.sandboxes.base import Command, Function, Python

VALUE_DESCRIPTOR = 3
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


def run_program(program: Python | Command | Function, value_descriptor: int) -> NoReturn:
    """Run it, in an interpreter that `renew_interpreter` has seen to, and end this process."""
    if isinstance(program, Command):
        _run_command(program)
    if isinstance(program, Python):
        end_with(lambda: _run_source(program))
    end_with(lambda: answer(program, value_descriptor))


def renew_interpreter() -> None:
    """Streams with nothing in their buffers, and Ctrl-C as Python has it; once, for all processes to come."""
    sys.stdin = _text(0, "r", "surrogateescape")
    sys.stdout = _text(1, "w", "surrogateescape")
    sys.stderr = _text(2, "w", "backslashreplace")
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))
    signal.signal(signal.SIGINT, signal.default_int_handler)


def begin_anew() -> None:
    """What each process has of its own: garbage, and random numbers."""
    gc.enable()
    if python_random := sys.modules.get("random"):
        python_random.seed()
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()


def _text(descriptor: int, mode: str, errors: str) -> Any:
    raw = io.FileIO(descriptor, mode, closefd=False)
    buffer = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    # Line by line: what was printed before a limit is seen, and keeps its place among lines of stderr.
    return io.TextIOWrapper(buffer, encoding="utf-8", errors=errors, line_buffering=mode == "w")


def _run_command(program: Command) -> NoReturn:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and what is started would too.
    try:
        os.execvpe(program.arguments[0], program.arguments, os.environ)
    except FileNotFoundError:
        code, reason = _NOT_FOUND, "command not found"
    except (OSError, ValueError) as error:
        code, reason = _NOT_EXECUTABLE, getattr(error, "strerror", None) or str(error)
    with contextlib.suppress(OSError):
        os.write(2, f"{program.arguments[0]}: {reason}\n".encode(errors="replace"))
    os._exit(code)


def _run_source(program: Python) -> None:
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=program.filename, __builtins__=builtins)
    sys.modules["__main__"] = main
    sys.argv = [program.filename]
    lines = program.source.splitlines(keepends=True)
    linecache.cache[program.filename] = (len(program.source), None, lines, program.filename)
    exec(compile(program.source, program.filename, "exec", dont_inherit=True), main.__dict__)


def answer(program: Function, value_descriptor: int, *, after: Callable[[], None] = lambda: None) -> None:
    """Call a function, do what comes after it, and hand its value over."""
    name, _, function = program.target.partition(":")
    module = sys.modules.get(name) or importlib.import_module(name)
    value = getattr(module, function)(program.argument)
    if not isinstance(value, bytes):
        raise TypeError(f"{program.target} returned {type(value).__name__}; the function of a task returns bytes")
    after()
    with io.FileIO(value_descriptor, "w", closefd=False) as raw, io.BufferedWriter(raw) as pipe:
        pipe.write(struct.pack("!Q", len(value)) + value)


def end_with(work: Callable[[], None]) -> NoReturn:
    """End as an interpreter does: its exit code, its traceback, its exit handlers, everything flushed."""
    code = 1
    try:
        try:
            work()
            code = 0
        except SystemExit as stop:
            code = _exit_code(stop)
        except BaseException as error:
            _report(error)
        _finish()
    except BaseException:
        code = code or 1
    finally:
        os._exit(code)


def _finish() -> None:
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    print(stop.code, file=sys.stderr)
    return 1


def _report(error: BaseException) -> None:
    """The traceback from the first frame of the program on, without those that led to it."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    error.__traceback__ = frames
    if sys.excepthook is not sys.__excepthook__:
        sys.excepthook(type(error), error, frames)
    else:
        traceback.print_exception(error)
