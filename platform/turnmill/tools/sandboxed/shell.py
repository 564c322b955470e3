"""Execution of shell lines, each in its own bash; working directory, exports and functions persist between them."""

import contextlib
import functools
import json
import os
import select
import shlex
import signal
import sys
import time
from collections.abc import Mapping

from turnmill.sandboxes import processes
from turnmill.tools.sandboxed.packing import unpack
from turnmill.tools.sandboxed.session_result import not_kept_notice, pack_session_result
from turnmill.tools.sandboxed.shell_lines import join_lines
from turnmill.tools.sandboxed.workspace import restore, snapshot

TIMED_OUT = "Process timed out after {seconds:g} seconds"
CUT = "... [output cut: a block shows {limit:,} characters]"
_HOME_MARK = b"\x01home\x01"
_DRAIN_SECONDS = 0.1
_POLL_SECONDS = 0.05
_SAVED_BYTES = 4 << 20
"""Bytes to read of exports and functions; more than the maximum size of a state."""

# Files for bash's saved state, and for its input if that is longer than a variable can be.
_SAVED, _INPUT = 199, 198
_MAX_VARIABLE_BYTES = 100_000
_FOLDERS = ("/usr/local/bin", "/usr/bin", "/bin")

# One line, so that errors of the agent's line name line 1. Its limits come before anything of the agent's.
_SCRIPT = (
    "{{ ulimit -St {cpu_seconds}; ulimit -Ht {cpu_seconds_at_most}; "
    'eval "$TURNMILL_SETUP"; }} 2>/dev/null; eval "$TURNMILL_LINE"'
)
_READ_FIRST = (
    f"IFS= read -r -d '' -u {_INPUT} TURNMILL_SETUP; IFS= read -r -d '' -u {_INPUT} TURNMILL_LINE; exec {_INPUT}<&-;"
    ' eval "$TURNMILL_SETUP"'
)
_SAVE = (
    'builtin printf "%s\\0" "$PWD"; builtin export -n PWD SHLVL _ TURNMILL_LINE; {unchanged} builtin declare -px;'
    ' builtin printf "\\0"; builtin declare -f; builtin declare -Fx; builtin printf "\\0"'
)


def run(argument: bytes) -> bytes:
    """Run the part `lines` with the state in the part `state`; the transcript goes to stdout line by line."""
    parts = unpack(argument)
    limits = json.loads(parts["limits"])
    before = unpack(parts["state"])
    root = os.getcwd()
    restore(before, root)
    shell = _Shell(root, before, limits["seconds"], limits["characters"], limits["cpu_seconds"])
    try:
        lines = json.loads(parts["lines"])
        for line in join_lines(lines) if limits["join"] else lines:
            shell.run_line(line)
    finally:
        shell.end()
    files, left_out = snapshot(root, max_bytes=limits["home_bytes"], max_files=limits["home_files"])
    shell.write(not_kept_notice(left_out))
    return pack_session_result({}, before, {**shell.state(), **files})


class _Shell:
    """State that is passed from one line to the next."""

    def __init__(
        self, root: str, state: Mapping[str, bytes], seconds: float, max_characters: int, cpu_seconds: int
    ) -> None:
        self._root = root
        self._script = _SCRIPT.format(cpu_seconds=cpu_seconds, cpu_seconds_at_most=cpu_seconds + 1)
        self._seconds = seconds
        self._room = self._limit = max_characters
        self._environment = _environment()
        self._exports = self._with_home(state.get("exports", b""))
        self._functions = self._with_home(state.get("functions", b""))
        folder = state.get("cwd", b"~").decode("utf-8", "surrogateescape")
        self._folder = root + folder.removeprefix("~") if folder.startswith("~") else folder
        self._processes: list[int] = []

    def state(self) -> dict[str, bytes]:
        """Return the parts of the state except files."""
        parts = {
            "cwd": self._shown_folder().encode("utf-8", "surrogateescape"),
            "exports": self._exports.replace(os.fsencode(self._root), _HOME_MARK),
            "functions": self._functions.replace(os.fsencode(self._root), _HOME_MARK),
        }
        return {name: part for name, part in parts.items() if part.strip()}

    def run_line(self, line: str) -> None:
        """Run a line, and write it with its output to the transcript."""
        if not os.path.isdir(self._folder):
            self._folder = self._root
        self.write(f"user@bash-session:{self._shown_folder()}$ " + line.replace("\n", "\n> "))
        with contextlib.ExitStack() as stack:
            written = self._watch(*self._start(line.encode("utf-8", "surrogateescape"), stack))
        if written is None:
            self.write(TIMED_OUT.format(seconds=self._seconds))
            return
        output, saved = written
        self._apply_saved_state(saved)
        self.write(output.decode("utf-8", "replace").rstrip("\n"))

    def write(self, text: str) -> None:
        """Write to the transcript until its limit."""
        if not text or self._room < 0:
            return
        shown = text if len(text) <= self._room else f"{text[: self._room]}\n{CUT.format(limit=self._limit)}"
        self._room -= len(text)
        sys.stdout.write(shown + "\n")
        sys.stdout.flush()

    def end(self) -> None:
        """Kill the processes in the background."""
        if _is_first_process():
            processes.kill_others()
            return
        # The first process of each group is unreaped and keeps its number.
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)

    def _start(self, line: bytes, stack: contextlib.ExitStack) -> tuple[int, int, int]:
        """Start a bash in a session of its own; return it with the descriptors of its output and of its saved state."""
        shown, saved = _pipe(stack), _pipe(stack)
        setup = self._setup()
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, shown[1], 1),
            (os.POSIX_SPAWN_DUP2, shown[1], 2),
            (os.POSIX_SPAWN_DUP2, saved[1], _SAVED),
        ]
        if max(len(setup), len(line)) > _MAX_VARIABLE_BYTES:
            actions.append((os.POSIX_SPAWN_DUP2, self._unnamed_file(setup + b"\0" + line + b"\0", stack), _INPUT))
            setup, line = _READ_FIRST.encode(), b""
        process = os.posix_spawn(
            _program(),
            ["bash", "--noprofile", "--norc", "-c", self._script],
            {**self._environment, "TURNMILL_SETUP": os.fsdecode(setup), "TURNMILL_LINE": os.fsdecode(line)},
            file_actions=actions,
            setsid=True,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
        self._processes.append(process)
        for _, writing in (shown, saved):
            os.close(writing)
        return process, shown[0], saved[0]

    def _unnamed_file(self, content: bytes, stack: contextlib.ExitStack) -> int:
        """Return a descriptor of a deleted file with this content, positioned at its start."""
        path = f"{self._root}/{os.urandom(16).hex()}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, descriptor)
        os.unlink(path)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor

    def _watch(self, process: int, shown: int, saved: int) -> tuple[bytes, bytes] | None:
        """Return its output and saved state when it has ended; None if it was killed."""
        # Output beyond the limit is read and dropped, so that the writer continues and memory does not fill.
        kept = {shown: bytearray(), saved: bytearray()}
        room = {shown: 4 * self._limit, saved: _SAVED_BYTES}
        shell_exit = processes.ExitWatcher(process)
        poll = select.poll()
        for descriptor in (shown, saved, shell_exit.descriptor):
            poll.register(descriptor, select.POLLIN)
        deadline, ended, shows = time.monotonic() + self._seconds, False, True
        try:
            while (shows or not ended) and (left := deadline - time.monotonic()) > 0:
                ready = dict(poll.poll(1000 * min(left, _POLL_SECONDS)))
                for descriptor in kept.keys() & ready:
                    block = os.read(descriptor, 65536)
                    kept[descriptor] += block[: max(0, room[descriptor] - len(kept[descriptor]))]
                    if not block:
                        poll.unregister(descriptor)
                        shows = shows and descriptor != shown
                if not ended and shell_exit.descriptor in ready and shell_exit.has_exited():
                    poll.unregister(shell_exit.descriptor)
                    # Background processes may keep the pipes open.
                    ended, deadline = True, time.monotonic() + _DRAIN_SECONDS
                if not ready and _is_first_process():
                    processes.reap()
        finally:
            shell_exit.close()
        if ended:
            os.set_blocking(saved, False)
            with contextlib.suppress(BlockingIOError):
                while (block := os.read(saved, 65536)) and len(kept[saved]) < _SAVED_BYTES:
                    kept[saved] += block
            return bytes(kept[shown]), bytes(kept[saved])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        return None

    def _setup(self) -> bytes:
        unchanged = " ".join(
            f"[[ ${{{name}-}} == {shlex.quote(value)} ]] && builtin export -n {name};"
            for name, value in self._environment.items()
            if name.isidentifier()
        )
        save = f"{{ {_SAVE.format(unchanged=unchanged)}; }} 2>/dev/null >&{_SAVED}"
        lines = (
            b"unset -v TURNMILL_SETUP; export -n TURNMILL_LINE",
            b"cd -- " + shlex.quote(self._folder).encode("utf-8", "surrogateescape"),
            self._exports,
            self._functions,
            b"trap -- " + shlex.quote(save).encode("utf-8", "surrogateescape") + b" EXIT",
        )
        return b"\n".join(lines)

    def _apply_saved_state(self, saved: bytes) -> None:
        """Update the state; a line that did not reach its end (exec, a trap of its own) leaves it unchanged."""
        fields = saved.split(b"\0")
        if len(fields) == 4:
            self._folder = os.fsdecode(fields[0])
            self._exports, self._functions = fields[1], fields[2]

    def _with_home(self, text: bytes) -> bytes:
        return text.replace(_HOME_MARK, os.fsencode(self._root))

    def _shown_folder(self) -> str:
        inside = self._folder == self._root or self._folder.startswith(f"{self._root}/")
        return "~" + self._folder.removeprefix(self._root) if inside else self._folder


def _is_first_process() -> bool:
    """Return True if this is the first process of a pid namespace, whose orphans all belong to the task."""
    return os.getpid() == 1


def _pipe(stack: contextlib.ExitStack) -> tuple[int, int]:
    """Create a pipe whose reading end is closed with the stack."""
    reading, writing = os.pipe()
    stack.callback(os.close, reading)
    return reading, writing


def _environment() -> dict[str, str]:
    """Return the environment of a bash, with the shell and locale that it would otherwise look up."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PWD", "OLDPWD", "LANG")}
    return {**environment, "LC_CTYPE": "C.UTF-8", "SHELL": "/bin/bash"}


@functools.cache
def _program() -> str:
    paths = (f"{folder}/bash" for folder in _FOLDERS)
    return next((path for path in paths if os.access(path, os.X_OK)), "bash")
