"""Calls a function with a task: the program of agents with `entryPoint`.

PYTHON entry_point.py package.module:function < task.json
PYTHON entry_point.py package.module:function --load-only [--preload]
PYTHON entry_point.py package.module:function --preload DESCRIPTOR

The last line of its output is the result: an object stays as it is, a number is the reward, a text is the answer. With
`--preload`, the module is imported once, and each request over the socket DESCRIPTOR calls the function in a fork.

The interpreter may be of another virtual environment, so this file imports nothing of this package.
"""

import array
import asyncio
import ctypes
import gc
import importlib
import importlib.util
import inspect
import json
import os
import select
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

LOAD_ONLY, PRELOAD = "--load-only", "--preload"
"""Arguments after the function: nothing is called; the module is imported once, for all calls."""

MAX_REQUEST_BYTES = 65_536
PR_SET_PDEATHSIG = 1

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


def require_no_threads() -> None:
    """Raise RuntimeError if the module has started threads while it was imported, as a fork has none of them."""
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if others:
        raise RuntimeError(f"it starts threads while it is imported, which preload would lose: {', '.join(others)}")


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


class Forks:
    """Forks this process for each request, and says how each fork has ended.

    A request is a JSON object with a `number`, the `folder` and the `variables` of a fork, and the descriptors of its
    standard streams; `{"kill": number}` ends one. The replies are `{"number", "pid"}` and `{"number", "exitCode"}`.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._numbers: dict[int, int] = {}
        """Numbers of the requests by the processes of their forks."""

        self._pipe = self._wake, wake = os.pipe()
        for descriptor in self._pipe:
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        # The signal is ignored unless it has a handler.
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Answer requests until the socket is closed, which ends the process; return in each fork."""
        self._reply({"ready": True})
        while True:
            ready, _, _ = select.select((self._control.fileno(), self._wake), (), ())
            if self._wake in ready:
                self._report_ends()
            if self._control.fileno() in ready and self._take_request():
                return

    def _take_request(self) -> bool:
        """Take one request; return True in the fork that plays it."""
        descriptors = array.array("i")
        raw, ancillary, _, _ = self._control.recvmsg(MAX_REQUEST_BYTES, socket.CMSG_SPACE(3 * descriptors.itemsize))
        if not raw:
            for pid in self._numbers:
                kill_group(pid)
            sys.exit()
        for _, _, data in ancillary:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
        request = json.loads(raw)
        if "kill" in request:
            for pid, number in self._numbers.items():
                if number == request["kill"]:
                    kill_group(pid)
            return False
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become(request, list(descriptors), parent)
            return True
        self._numbers[pid] = request["number"]
        for descriptor in descriptors:
            os.close(descriptor)
        self._reply({"number": request["number"], "pid": pid})
        return False

    def _become(self, request: dict[str, object], descriptors: list[int], parent: int) -> None:
        """Make this fork a process like one that was started for the task."""
        os.setsid()
        die_with(parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.close()
        for descriptor in self._pipe:
            os.close(descriptor)
        for stream, descriptor in enumerate(descriptors):
            os.dup2(descriptor, stream)
        for descriptor in descriptors:
            os.close(descriptor)
        folder = str(request["folder"])
        os.chdir(folder)
        variables = request["variables"]
        assert isinstance(variables, dict)
        os.environ.update(variables)
        tempfile.tempdir = None
        # Each fork would draw the same numbers. Python's own generator is seeded by Python.
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()

    def _report_ends(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._wake, 4096):
                pass
        with suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                # Before its number can be another process's.
                kill_group(ended.si_pid)
                _, status = os.waitpid(ended.si_pid, 0)
                number = self._numbers.pop(ended.si_pid, None)
                if number is not None:
                    self._reply({"number": number, "exitCode": exit_code(status)})

    def _reply(self, reply: dict[str, object]) -> None:
        self._control.send(json.dumps(reply).encode())


def die_with(parent: int) -> None:
    """Have this process killed when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def kill_group(pid: int) -> None:
    """Kill what is left of a process group, which has not begun if its process is not yet a session's leader."""
    for kill, target in ((os.killpg, pid), (os.kill, pid)):
        with suppress(ProcessLookupError, PermissionError):
            kill(target, signal.SIGKILL)


def exit_code(status: int) -> int:
    """Return the exit code of a status of `waitpid`: negative for a signal."""
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)


def main() -> None:
    """Call the function that is named on the command line with the task on the standard input."""
    # Not the modules beside this file, which have common names.
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]
    function, arguments = load(sys.argv[1]), sys.argv[2:]
    if PRELOAD in arguments:
        require_no_threads()
    if LOAD_ONLY in arguments:
        return
    if PRELOAD in arguments:
        # Collections would write to pages that all forks share.
        gc.collect()
        gc.freeze()
        # Each fork would write what is not written yet.
        sys.stdout.flush()
        Forks(socket.socket(fileno=int(arguments[-1]))).serve()
    returned = function(json.load(sys.stdin))
    if inspect.iscoroutine(returned):
        returned = asyncio.run(returned)
    print("\n" + json.dumps(result_of(returned)), flush=True)


if __name__ == "__main__":
    main()
