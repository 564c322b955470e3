"""Several workers on one socket: started together, started again when they die, ended together."""

import logging
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Protocol

from turnmill.core.errors import RunFailedError, SettingsError, TurnmillError
from turnmill.observability.tool_metrics import WORKERS_FOLDER_VARIABLE
from turnmill.tool_server.settings import ServerSettings

log = logging.getLogger(__name__)

START_SECONDS = 60.0
FIRST_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 10.0
TICK_SECONDS = 0.2
KILL_AFTER_SECONDS = 3.0
"""Beyond the grace; together they stay below the 12 s within which verl-tool's children are gone."""

READY = "ready"


class RunWorker(Protocol):
    """`serve.run_worker`."""

    def __call__(
        self,
        settings: ServerSettings,
        listener: socket.socket,
        *,
        on_ready: Callable[[], None],
        stop_when_readable: int | None = None,
    ) -> None: ...


@dataclass(slots=True)
class _Child:
    process: SpawnProcess
    reports: Connection
    ready: bool = False
    failure: TurnmillError | None = None


class Supervisor:
    """Keeps as many workers as the settings want."""

    def __init__(
        self,
        settings: ServerSettings,
        listener: socket.socket,
        run_worker: RunWorker,
        *,
        on_ready: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._run_worker = run_worker
        self._on_ready = on_ready
        self._children: list[_Child] = []
        self._stopping = False
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._next_start = 0.0

    def run(self) -> None:
        """Serve until a signal says stop; raises what kept the first workers from starting."""
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        folder = tempfile.mkdtemp(prefix="turnmill-metrics-")
        # The workers' prometheus_client reads it when it is imported.
        os.environ[WORKERS_FOLDER_VARIABLE] = folder
        try:
            self._start_all()
            if not self._stopping:
                self._on_ready()
            while not self._stopping:
                self._listen()
                self._replace_the_dead()
        finally:
            self._end_all()
            del os.environ[WORKERS_FOLDER_VARIABLE]
            shutil.rmtree(folder, ignore_errors=True)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: object) -> None:
        self._stopping = True

    def _start_all(self) -> None:
        self._children = [self._start() for _ in range(self._settings.num_workers)]
        deadline = time.monotonic() + START_SECONDS
        while not self._stopping and not all(child.ready for child in self._children):
            self._listen()
            for child in self._children:
                if child.failure is not None:
                    raise child.failure
                if not child.process.is_alive() and not child.ready:
                    code = child.process.exitcode
                    raise RunFailedError(f"A worker ended with code {code} before it was ready.", "worker")
            if time.monotonic() > deadline:
                raise RunFailedError(f"The workers were not ready within {START_SECONDS:g} s.", "worker")

    def _start(self) -> _Child:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_run_child,
            args=(self._settings, self._listener, theirs, self._run_worker),
            name="tool-server-worker",
        )
        process.start()
        theirs.close()
        return _Child(process, ours)

    def _listen(self) -> None:
        """Take in what workers report, for at most one tick."""
        waiting = [child.reports for child in self._children if not child.reports.closed]
        for reports in wait(waiting, timeout=TICK_SECONDS) if waiting else ():
            child = next(child for child in self._children if child.reports is reports)
            try:
                report = child.reports.recv()
            except (EOFError, OSError):
                child.reports.close()
                continue
            if report == READY:
                child.ready = True
                self._pause_seconds = FIRST_PAUSE_SECONDS
            else:
                kind, message = report
                child.failure = SettingsError(message) if kind == "settings" else RunFailedError(message, "worker")

    def _replace_the_dead(self) -> None:
        dead = [child for child in self._children if not child.process.is_alive()]
        if not dead:
            return
        if time.monotonic() < self._next_start:
            time.sleep(TICK_SECONDS / 4)
            return
        for child in dead:
            log.error("Worker ended; starting another", extra={"exit_code": child.process.exitcode})
            child.process.close()
            child.reports.close()
            self._children[self._children.index(child)] = self._start()
        self._next_start = time.monotonic() + self._pause_seconds
        self._pause_seconds = min(self._pause_seconds * 2, MAX_PAUSE_SECONDS)

    def _end_all(self) -> None:
        self._listener.close()
        for child in self._children:
            # To a worker the closed pipe says the same as the signal.
            child.reports.close()
            if child.process.is_alive():
                child.process.terminate()
        deadline = time.monotonic() + self._settings.grace_seconds + KILL_AFTER_SECONDS
        for child in self._children:
            child.process.join(max(0.0, deadline - time.monotonic()))
            if child.process.is_alive():
                log.error("Worker does not end; killing it", extra={"process_id": child.process.pid})
                child.process.kill()
                child.process.join()
            child.process.close()


def _run_child(settings: ServerSettings, listener: socket.socket, reports: Connection, run_worker: RunWorker) -> None:
    from turnmill.tool_server.serve import configure_logs

    configure_logs(settings)
    try:
        # The other end of the pipe closes when the parent ends, however it ends.
        run_worker(settings, listener, on_ready=lambda: reports.send(READY), stop_when_readable=reports.fileno())
    except TurnmillError as error:
        kind = "settings" if isinstance(error, SettingsError) else type(error).__name__
        reports.send((kind, str(error)))
        raise SystemExit(1) from None
