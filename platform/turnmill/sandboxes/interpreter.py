"""Execution of a task's program in its confined process, as by a fresh interpreter."""

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
from typing import NoReturn

from turnmill.sandboxes.base import Command, Function, Program, Python

VALUE_DESCRIPTOR = 3
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


def run_program(program: Program, value_descriptor: int) -> NoReturn:
    """Run a program in an interpreter that `reset_interpreter` has prepared, and end this process."""
    if isinstance(program, Command):
        _run_command(program)
    if isinstance(program, Python):
        run_and_exit(lambda: _run_source(program))
    run_and_exit(lambda: call_function(program, value_descriptor))


def reset_interpreter() -> None:
    """Create standard streams with empty buffers and restore Python's SIGINT handler, once for all later forks."""
    sys.stdin = _text_stream(0, "r", "surrogateescape")
    sys.stdout = _text_stream(1, "w", "surrogateescape")
    sys.stderr = _text_stream(2, "w", "backslashreplace")
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))
    signal.signal(signal.SIGINT, signal.default_int_handler)


def reset_after_fork() -> None:
    """Give this process garbage collection and random seeds of its own."""
    gc.enable()
    if python_random := sys.modules.get("random"):
        python_random.seed()
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()


def _text_stream(descriptor: int, mode: str, errors: str) -> io.TextIOWrapper:
    raw = io.FileIO(descriptor, mode, closefd=False)
    buffer: io.BufferedReader | io.BufferedWriter = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    # Line-buffered: output printed before a limit is kept, and stays in order with lines of stderr.
    return io.TextIOWrapper(buffer, encoding="utf-8", errors=errors, line_buffering=mode == "w")


def _run_command(program: Command) -> NoReturn:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and the program would inherit that.
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


def call_function(
    program: Function, value_descriptor: int, *, before_return: Callable[[], None] = lambda: None
) -> None:
    """Call the function, then `before_return`, and write the function's value to the descriptor."""
    name, _, function = program.target.partition(":")
    module = sys.modules.get(name) or importlib.import_module(name)
    value = getattr(module, function)(program.argument)
    if not isinstance(value, bytes):
        raise TypeError(f"{program.target} returned {type(value).__name__}; the function of a task returns bytes")
    before_return()
    with io.FileIO(value_descriptor, "w", closefd=False) as raw, io.BufferedWriter(raw) as pipe:
        pipe.write(struct.pack("!Q", len(value)) + value)


def run_and_exit(work: Callable[[], None]) -> NoReturn:
    """Run `work` and exit as an interpreter does: exit code, traceback, exit handlers, flushed buffers."""
    code = 1
    try:
        try:
            work()
            code = 0
        except SystemExit as stop:
            code = _exit_code(stop)
        except BaseException as error:
            _print_exception(error)
        _run_exit_handlers()
    except BaseException:
        code = code or 1
    finally:
        os._exit(code)


def _run_exit_handlers() -> None:
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


def _print_exception(error: BaseException) -> None:
    """Print the traceback from the first frame of the program on."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    error.__traceback__ = frames
    if sys.excepthook is not sys.__excepthook__:
        sys.excepthook(type(error), error, frames)
    else:
        traceback.print_exception(error)
