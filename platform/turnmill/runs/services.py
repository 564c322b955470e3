"""Tool server and trajectory store of a run, started and stopped with it."""

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from turnmill.core.activity import STOPPED_LOOKS, Stillness, Stops
from turnmill.core.errors import RunFailedError, StoreUnavailableError
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.tool_server import RunToolServer
from turnmill.observability.run_folder import RunFolder
from turnmill.runs import processes
from turnmill.runs.processes import Owner
from turnmill.runs.server_process import HEALTH_SECONDS, answers, is_healthy, stop, tail
from turnmill.training.agent_kinds import agent_kind
from turnmill.trajectories.address import JournalAddress
from turnmill.trajectories.embedded import EmbeddedStore

STORE_VARIABLE = "TURNMILL_REDIS"
START_SECONDS, STOP_SECONDS, WAIT_SECONDS = 120.0, 10.0, 0.25
ASK_SECONDS, HUNG_SECONDS = 1.0, 15.0
"""Time between two questions whether the tool server is there, and without an answer until it is taken for hung: a call
that waits for it has half a minute by default, in which another server must have started."""

STILL_LOOKS, STILL_ANSWER_SECONDS = 4, 0.5
"""Looks in a row, `WAIT_SECONDS` apart, at a server of which no thread has run, and time that it has to answer then: it
is stopped, and waits for no tool."""

LOG_LINES = 5

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Services:
    """Tool server and store of a run, of which the tool server may still be starting."""

    addresses: Mapping[str, str]
    tool_server: "ToolServerProcess | None" = None
    store: EmbeddedStore | None = None
    """The store, unless the user gives one."""

    def wait(self) -> None:
        """Wait until all answer. Raises RunFailedError if one does not."""
        if self.tool_server is not None:
            self.tool_server.wait()

    def process_ids(self) -> set[int]:
        """Return the ids of their processes, and of all that these have started."""
        started = [server.pid for server in (self.tool_server, self.store) if server is not None]
        return {pid for each in started for pid in processes.tree(each)}


@contextmanager
def services(job: AgentTrainingJob, folder: RunFolder, owner: Owner) -> Iterator[Services]:
    """Start the tool server and the store that the user does not give, and stop them when the context ends."""
    kind = agent_kind(job.spec.agent)
    if job.spec.fine_tuning is not None or not kind.uses_store:
        yield Services({})
        return
    with _store(folder, owner) as (store_url, store):
        JournalAddress(store_url, folder.run_name()).write(folder.path)
        if (tools := kind.tools_to_serve()) is None:
            yield Services({"store_url": store_url}, store=store)
            return
        server = ToolServerProcess(
            tools, store_url, kind.tool_server(), run_name=job.metadata.name, log_file=folder.logs
        )
        try:
            server.begin()
            yield Services({"store_url": store_url, "tool_server_url": server.url}, server, store)
        finally:
            server.stop()


@contextmanager
def _store(folder: RunFolder, owner: Owner) -> Iterator[tuple[str, EmbeddedStore | None]]:
    if (given := os.environ.get(STORE_VARIABLE)) is not None:
        yield given, None
        return
    kept = folder.path / "store"
    kept.mkdir(exist_ok=True)
    store = EmbeddedStore(keep_in=kept)
    try:
        store.start()
    except StoreUnavailableError as error:
        raise RunFailedError(str(error), "store") from error
    try:
        owner.remember_folder(store.folder)
        yield store.url, store
    finally:
        store.stop()


class ToolServerProcess:
    """A `turnmill tool-server` on a free loopback port, which is restarted if it ends early, or answers no more.

    The socket on which it listens stays open here: meanwhile, connections wait for the next server.
    """

    def __init__(self, tools: str, store_url: str, settings: RunToolServer, *, run_name: str, log_file: Path) -> None:
        self._tools = tools
        self._store_url = store_url
        self._settings = settings
        self._run_name = run_name
        self._log_file = log_file / "tool-server.log"
        # The server sets how many connections may wait.
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://{}:{}".format(*self._listener.getsockname())
        """The URL of the server."""

        self._process: subprocess.Popen[bytes] | None = None
        self._start_deadline = 0.0
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    @property
    def pid(self) -> int:
        """Process id of the server, which changes when it is started again."""
        assert self._process is not None, "the tool server is not started"
        return self._process.pid

    def start(self) -> None:
        """Start the server and wait until it answers. Raises RunFailedError if it does not."""
        self.begin()
        self.wait()

    def begin(self) -> None:
        """Start the server; `wait` has to follow. Meanwhile, connections wait for it."""
        self._launch()
        self._start_deadline = time.monotonic() + START_SECONDS

    def wait(self) -> None:
        """Wait until the server answers, and watch it from then on. Raises RunFailedError if it does not answer.

        One that is watched is not waited for: it is started again if need be, and connections wait for it.
        """
        if self._watcher.is_alive():
            return
        while not is_healthy(self.url):
            if self._process is not None and (exit_code := self._process.poll()) is not None:
                output = tail(self._log_file, LOG_LINES)
                # Killed: the next attempt may succeed.
                cause = "tool_server" if exit_code < 0 else "settings"
                self.stop()
                raise RunFailedError(f"The tool server did not start (exit code {exit_code}):\n{output}", cause)
            if time.monotonic() > self._start_deadline:
                self.stop()
                raise RunFailedError(
                    f"The tool server did not answer within {START_SECONDS:g} s. See {self._log_file}.", "tool_server"
                )
            time.sleep(WAIT_SECONDS)
        self._watcher.start()

    def stop(self) -> None:
        """Terminate the server, and kill it if it does not end in time."""
        self._stopping.set()
        if self._process is not None:
            stop(self._process, STOP_SECONDS)
        self._listener.close()

    def _launch(self) -> None:
        with self._log_file.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "turnmill.cli.main", "tool-server", "--tool_type", self._tools),
                    *("--host", "127.0.0.1", "--listener", str(self._listener.fileno()), "--run_name", self._run_name),
                    *self._settings.arguments(),
                    *("--parent", str(os.getpid())),
                ],
                # Keys of services are in the environment, as arguments can be read by everyone on the machine.
                env=os.environ | self._settings.settings | {STORE_VARIABLE: self._store_url},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[self._listener.fileno()],
                # The terminal's Ctrl-C is for the run, which stops the server after its last call.
                start_new_session=True,
            )

    def _watch(self) -> None:
        asked, hung_at = 0.0, time.monotonic() + HUNG_SECONDS
        stillness: Stillness | None = Stillness()
        stops = Stops()
        while not self._stopping.wait(WAIT_SECONDS):
            if self._process is None:
                continue
            if self._process.poll() is not None:
                log.warning("Tool server ended and is started again", extra={"exit_code": self._process.returncode})
                # Until it has answered, it shows no activity.
                hung_at, stillness = time.monotonic() + START_SECONDS, None
                try:
                    self._launch()
                except OSError as error:
                    # Memory or disk may be short at present, as when the server was killed for it.
                    log.warning("Tool server cannot be started", extra={"error": str(error)})
                continue
            pid = self._process.pid
            stopped = stops.look(pid) >= STOPPED_LOOKS
            still = stopped or (stillness is not None and stillness.look(pid) >= STILL_LOOKS)
            if not still and time.monotonic() < asked + ASK_SECONDS:
                continue
            if not stopped and answers(self.url, seconds=STILL_ANSWER_SECONDS if still else HEALTH_SECONDS):
                hung_at, stillness = time.monotonic() + HUNG_SECONDS, stillness or Stillness()
            elif still or time.monotonic() >= hung_at:
                log.warning("Tool server does not answer and is killed", extra={"stands_still": still})
                self._process.kill()
            asked = time.monotonic()
