"""A Redis-compatible server that can lose its connections, its last writes, its primary and its sense of time.

Servers listen on sockets in their folders: a port that is free for a moment would be taken by a client's connection.
"""

import asyncio
import contextlib
import random
import subprocess
from collections import deque
from collections.abc import Callable
from pathlib import Path

import redis.asyncio
import redis.exceptions

from turnmill.trajectories.embedded import find_server

START_SECONDS = 60.0
SAMPLE_SECONDS = 0.05
UNSYNCED_SECONDS = 1.0
"""How much of the log a power cut may undo with `appendfsync everysec`."""

CLOCK = "clock offset"
"""Key with the seconds that are added to the server's clock."""


class Server:
    """A server process with an append-only file, as in the chart."""

    def __init__(self, folder: Path, command: Callable[..., list[str]] = lambda *words: list(words)) -> None:
        """Keep data in a folder; `command` wraps the server's command line."""
        self.folder = folder
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._sizes: deque[int] = deque(maxlen=round(UNSYNCED_SECONDS / SAMPLE_SECONDS))

    async def start(self, *, replica_of: int | None = None) -> None:
        """Start the process and wait until it answers; a replica of the server at a port has its data then."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._sizes.clear()
        options = {
            "port": 0, "unixsocket": self.socket, "dir": self.folder, "save": "", "appendonly": "yes",
            "appendfsync": "everysec", "auto-aof-rewrite-percentage": 0, "repl-diskless-sync-delay": 0,
        }  # fmt: skip
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        if replica_of is not None:
            words += ["--replicaof", f"127.0.0.1 {replica_of}"]
        with (self.folder / "log").open("ab") as output:
            self._process = subprocess.Popen(self._command(find_server(), *words), stdout=output, stderr=output)  # noqa: ASYNC220
        await self.ready(replica=replica_of is not None)

    async def ready(self, *, replica: bool = False) -> None:
        """Wait until the server answers and, if it is a replica, has what its primary has."""
        try:
            async with asyncio.timeout(START_SECONDS):
                while not await self._is_ready(replica=replica):  # noqa: ASYNC110 (only the server knows)
                    await asyncio.sleep(0.01)
        except TimeoutError as error:
            error.add_note((self.folder / "log").read_text(errors="replace")[-2000:])
            raise

    async def promote(self) -> None:
        """Make a replica the primary."""
        async with self.client() as client:
            await client.execute_command("REPLICAOF", "NO", "ONE")

    def sample(self) -> None:
        """Remember the size of the log, which is written before a command is answered."""
        self._sizes.append(self._log().stat().st_size)

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def lose_tail(self, chance: random.Random) -> None:
        """Undo what was written in the last second or a part of it, as a power cut does."""
        if self._sizes:
            size = chance.choice(list(self._sizes))
            with self._log().open("r+b") as file:
                file.truncate(min(size, self._log().stat().st_size))

    def client(self) -> redis.asyncio.Redis:
        """Return a client without the wire and without a time limit, which can swallow a cancellation."""
        # It uses asyncio.wait_for, which returns its result if that comes at the same moment (Python 3.11).
        return redis.asyncio.Redis(unix_socket_path=str(self.socket), protocol=2, socket_timeout=None)

    @property
    def socket(self) -> Path:
        """The socket on which the server listens."""
        return self.folder / "socket"

    def _log(self) -> Path:
        # The names are appendonly.aof.NUMBER.incr.aof.
        logs = (self.folder / "appendonlydir").glob("*.incr.aof")
        return max(logs, key=lambda log: int(log.name.split(".")[-3]))

    async def _is_ready(self, *, replica: bool) -> bool:
        async with self.client() as client:
            try:
                # A server that is loading tells about itself, but does not answer this.
                await client.ping()
                info = await client.info("replication")
            except redis.exceptions.RedisError:
                return False
        return not replica or info.get("master_link_status") == "up"


class Wire:
    """A port in front of a server, whose connections can be cut and whose answers can be lost."""

    def __init__(self) -> None:
        self.target: Path | None = None
        """Socket of the server; None refuses connections."""

        self.loses_answers = False
        self.port = 0
        """Port on which clients connect."""

        self._writers: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """URL by which clients connect."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        """Listen on a free port."""
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Close all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def stop(self) -> None:
        """Close the port and all connections."""
        self._listener.close()
        while self._connections:
            # Those that were just accepted have no writer yet.
            self.cut()
            await asyncio.wait(self._connections, timeout=0.1)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if self.target:
                back_reader, back_writer = await asyncio.open_unix_connection(self.target)
                self._writers.add(back_writer)
                try:
                    there = asyncio.create_task(self._forward(reader, back_writer, answers=False))
                    back = asyncio.create_task(self._forward(back_reader, writer, answers=True))
                    _, rest = await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
                    for task in rest:
                        task.cancel()
                    await asyncio.gather(there, back, return_exceptions=True)
                finally:
                    self._writers.discard(back_writer)
                    back_writer.transport.abort()
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if answers and self.loses_answers:
                    continue
                writer.write(data)
                await writer.drain()
