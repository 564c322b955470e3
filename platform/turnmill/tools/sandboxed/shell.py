"""A block of shell lines, each a bash of its own; working directory, exports and functions go from one to the next."""

import contextlib
import json
import os
import select
import shlex
import signal
import sys
import time
from collections.abc import Mapping

from turnmill.tools.sandboxed.answers import not_kept, pack_answer
from turnmill.tools.sandboxed.parts import unpack
from turnmill.tools.sandboxed.shell_lines import join_lines
from turnmill.tools.sandboxed.workspace import restore, snapshot

TIMED_OUT = "Process timed out after {seconds:g} seconds"
CUT = "... [output cut: a block shows {limit:,} characters]"
_HOME_MARK = b"\x01home\x01"
_DRAIN_SECONDS = 0.1
_POLL_SECONDS = 0.02

# Where bash finds what it is to do, and leaves what it did.
_ORDER, _SAVED = 198, 199

# Both texts are read from a descriptor, as they may be longer than an argument can be. One line, so that errors of the
# agent's line name line 1.
_SCRIPT = (
    f"IFS= read -r -d '' -u {_ORDER}; eval \"$REPLY\" 2>/dev/null; "
    f"IFS= read -r -d '' -u {_ORDER}; exec {_ORDER}<&-; eval \"$REPLY\""
)
_SAVE = (
    'builtin printf "%s\\0" "$PWD"; builtin export -n PWD SHLVL _; {unchanged} builtin declare -px;'
    ' builtin printf "\\0"; builtin declare -f; builtin declare -Fx; builtin printf "\\0"'
)


def run(argument: bytes) -> bytes:
    """Run the part `lines` on the part `state`; the transcript goes to stdout as it comes about."""
    parts = unpack(argument)
    limits = json.loads(parts["limits"])
    before = unpack(parts["state"])
    root = os.getcwd()
    files_of_bash = _nameless_file(root), _nameless_file(root)
    restore(before, root)
    shell = _Shell(root, before, limits["seconds"], limits["characters"], files_of_bash)
    try:
        lines = json.loads(parts["lines"])
        for line in join_lines(lines) if limits["join"] else lines:
            shell.run_line(line)
    finally:
        shell.end()
    files, left_out = snapshot(root, max_bytes=limits["home_bytes"], max_files=limits["home_files"])
    shell.say(not_kept(left_out))
    return pack_answer({}, before, {**shell.state(), **files})


def _nameless_file(folder: str) -> int:
    """Open and without a name, in a folder that is empty still; it goes with this process."""
    path = f"{folder}/nameless"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    return descriptor


class _Shell:
    """What one line leaves to the next."""

    def __init__(
        self, root: str, state: Mapping[str, bytes], seconds: float, max_characters: int, files: tuple[int, int]
    ) -> None:
        self._root = root
        self._order, self._saved = files
        self._seconds = seconds
        self._room = self._limit = max_characters
        self._environment = {name: value for name, value in os.environ.items() if name not in ("PWD", "OLDPWD")}
        self._exports = self._located(state.get("exports", b""))
        self._functions = self._located(state.get("functions", b""))
        folder = state.get("cwd", b"~").decode("utf-8", "surrogateescape")
        self._folder = root + folder.removeprefix("~") if folder.startswith("~") else folder
        self._processes: list[int] = []

    def state(self) -> dict[str, bytes]:
        """The parts of the state but for files."""
        parts = {
            "cwd": self._shown_folder().encode("utf-8", "surrogateescape"),
            "exports": self._exports.replace(os.fsencode(self._root), _HOME_MARK),
            "functions": self._functions.replace(os.fsencode(self._root), _HOME_MARK),
        }
        return {name: part for name, part in parts.items() if part.strip()}

    def run_line(self, line: str) -> None:
        """Run it and show it with what it wrote."""
        if not os.path.isdir(self._folder):
            self._folder = self._root
        self.say(f"user@bash-session:{self._shown_folder()}$ " + line.replace("\n", "\n> "))
        self._rewrite(self._order, self._setup() + b"\0" + line.encode("utf-8", "surrogateescape") + b"\0")
        self._rewrite(self._saved, b"")
        output = self._watch(*self._start())
        if output is None:
            self.say(TIMED_OUT.format(seconds=self._seconds))
            return
        self._take_over(os.pread(self._saved, os.fstat(self._saved).st_size, 0))
        self.say(output.decode("utf-8", "replace").rstrip("\n"))

    def say(self, text: str) -> None:
        """Show a text, as far as there is room."""
        if not text or self._room < 0:
            return
        shown = text if len(text) <= self._room else f"{text[: self._room]}\n{CUT.format(limit=self._limit)}"
        self._room -= len(text)
        sys.stdout.write(shown + "\n")
        sys.stdout.flush()

    def end(self) -> None:
        """Kill what still runs in the background; the first process of each group is unreaped and keeps its number."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)

    def _start(self) -> tuple[int, int]:
        """A bash that leads a session of its own, and the descriptor that it writes to."""
        ours, theirs = os.pipe()
        try:
            process = os.posix_spawnp(
                "bash",
                ["bash", "--noprofile", "--norc", "-c", _SCRIPT],
                self._environment,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, theirs, 1),
                    (os.POSIX_SPAWN_DUP2, theirs, 2),
                    (os.POSIX_SPAWN_DUP2, self._order, _ORDER),
                    (os.POSIX_SPAWN_DUP2, self._saved, _SAVED),
                ],
                setsid=True,
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._processes.append(process)
        return process, ours

    def _watch(self, process: int, pipe: int) -> bytes | None:
        """What it wrote until it ended; None if it had to be killed."""
        collected = bytearray()
        deadline = time.monotonic() + self._seconds
        ended = False
        try:
            while (left := deadline - time.monotonic()) > 0:
                if select.select([pipe], [], [], min(left, _POLL_SECONDS))[0]:
                    block = os.read(pipe, 65536)
                    if not block:
                        break
                    # What is read beyond the room is dropped, so that the writer goes on and memory does not fill.
                    collected += block[: max(0, 4 * self._limit - len(collected))]
                elif not ended and _has_ended(process):
                    ended, deadline = True, time.monotonic() + _DRAIN_SECONDS
        finally:
            os.close(pipe)
        while not ended and (left := deadline - time.monotonic()) > 0:
            ended = _has_ended(process)
            if not ended:
                time.sleep(min(left, _POLL_SECONDS / 20))
        if ended:
            return bytes(collected)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        return None

    @staticmethod
    def _rewrite(file: int, content: bytes) -> None:
        os.ftruncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)
        with open(file, "wb", closefd=False) as stream:
            stream.write(content)
        os.lseek(file, 0, os.SEEK_SET)

    def _setup(self) -> bytes:
        unchanged = " ".join(
            f"[[ ${{{name}-}} == {shlex.quote(value)} ]] && builtin export -n {name};"
            for name, value in self._environment.items()
            if name.isidentifier()
        )
        save = f"{{ {_SAVE.format(unchanged=unchanged)}; }} 2>/dev/null >&{_SAVED}"
        lines = (
            b"unset -v REPLY",
            b"cd -- " + shlex.quote(self._folder).encode("utf-8", "surrogateescape"),
            self._exports,
            self._functions,
            b"trap -- " + shlex.quote(save).encode("utf-8", "surrogateescape") + b" EXIT",
        )
        return b"\n".join(lines)

    def _take_over(self, saved: bytes) -> None:
        """A line that did not come to its end (exec, a trap of its own) leaves what was."""
        fields = saved.split(b"\0")
        if len(fields) == 4:
            self._folder = os.fsdecode(fields[0])
            self._exports, self._functions = fields[1], fields[2]

    def _located(self, text: bytes) -> bytes:
        return text.replace(_HOME_MARK, os.fsencode(self._root))

    def _shown_folder(self) -> str:
        inside = self._folder == self._root or self._folder.startswith(f"{self._root}/")
        return "~" + self._folder.removeprefix(self._root) if inside else self._folder


def _has_ended(process: int) -> bool:
    """Whether it ended; it stays unreaped."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
