"""Supervisor of several workers on one socket: starts them, replaces those that die, stops them together."""

import logging
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from turnmill.core.errors import RunFailedError, SettingsError, TurnmillError
from turnmill.observability.tool_metrics import WORKERS_FOLDER_VARIABLE
from turnmill.tool_server.settings import ServerSettings
from turnmill.tool_server.threads import exit_despite_threads
from turnmill.tool_server.worker_process import OnReady, configure_logs, run_worker

log = logging.getLogger(__name__)

START_SECONDS = 60.0
FIRST_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 10.0
TICK_SECONDS = 0.2
KILL_AFTER_SECONDS = 3.0
"""Time after the grace period; the sum is less than the 12 s within which verl-tool's children end."""

READY = "ready"


@dataclass(slots=True)
class _WorkerProcess:
    process: SpawnProcess
    reports: Connection
    ready: bool = False
    left_out: tuple[str, ...] = ()
    failure: TurnmillError | None = None


class Supervisor:
    """Keeps the configured number of workers running."""

    def __init__(
        self,
        settings: ServerSettings,
        listeners: Sequence[socket.socket],
        *,
        on_ready: OnReady,
    ) -> None:
        self._settings = settings
        self._listeners = tuple(listeners)
        self._on_ready = on_ready
        self._workers: list[_WorkerProcess] = []
        self._stopping = False
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._next_start = 0.0

    def run(self) -> None:
        """Serve until a signal. Raises SettingsError or RunFailedError if the first workers do not start."""
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        folder = tempfile.mkdtemp(prefix="turnmill-metrics-")
        # The workers' prometheus_client reads it when it is imported.
        os.environ[WORKERS_FOLDER_VARIABLE] = folder
        try:
            self._start_all()
            if not self._stopping:
                self._on_ready(self._workers[0].left_out)
            while not self._stopping:
                self._receive_reports()
                self._replace_dead_workers()
        finally:
            self._stop_workers()
            del os.environ[WORKERS_FOLDER_VARIABLE]
            shutil.rmtree(folder, ignore_errors=True)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: object) -> None:
        self._stopping = True

    def _start_all(self) -> None:
        self._workers = [self._start() for _ in range(self._settings.num_workers)]
        deadline = time.monotonic() + START_SECONDS
        while not self._stopping and not all(worker.ready for worker in self._workers):
            self._receive_reports()
            for worker in self._workers:
                if worker.failure is not None:
                    raise worker.failure
                if not worker.process.is_alive() and not worker.ready:
                    code = worker.process.exitcode
                    raise RunFailedError(f"A worker ended with code {code} before it was ready.", "worker")
            if time.monotonic() > deadline:
                raise RunFailedError(f"The workers were not ready within {START_SECONDS:g} s.", "worker")

    def _start(self) -> _WorkerProcess:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_run_and_report,
            args=(self._settings, self._listeners, theirs),
            name="tool-server-worker",
        )
        process.start()
        theirs.close()
        return _WorkerProcess(process, ours)

    def _receive_reports(self) -> None:
        """Wait for reports of workers, for at most one tick."""
        waiting = [worker.reports for worker in self._workers if not worker.reports.closed]
        for reports in wait(waiting, timeout=TICK_SECONDS) if waiting else ():
            worker = next(worker for worker in self._workers if worker.reports is reports)
            try:
                report = worker.reports.recv()
            except (EOFError, OSError):
                worker.reports.close()
                continue
            kind, content = report
            if kind == READY:
                worker.ready, worker.left_out = True, content
                self._pause_seconds = FIRST_PAUSE_SECONDS
            else:
                worker.failure = SettingsError(content) if kind == "settings" else RunFailedError(content, "worker")

    def _replace_dead_workers(self) -> None:
        dead = [worker for worker in self._workers if not worker.process.is_alive()]
        if not dead:
            return
        if time.monotonic() < self._next_start:
            time.sleep(TICK_SECONDS / 4)
            return
        for worker in dead:
            log.error("Worker ended; starting another", extra={"exit_code": worker.process.exitcode})
            worker.process.close()
            worker.reports.close()
            self._workers[self._workers.index(worker)] = self._start()
        self._next_start = time.monotonic() + self._pause_seconds
        self._pause_seconds = min(self._pause_seconds * 2, MAX_PAUSE_SECONDS)

    def _stop_workers(self) -> None:
        for listener in self._listeners:
            listener.close()
        for worker in self._workers:
            # A worker stops on the closed pipe as on the signal.
            worker.reports.close()
            if worker.process.is_alive():
                worker.process.terminate()
        deadline = time.monotonic() + self._settings.grace_seconds + KILL_AFTER_SECONDS
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                log.error("Worker does not end; killing it", extra={"process_id": worker.process.pid})
                worker.process.kill()
                worker.process.join()
            worker.process.close()


def _run_and_report(settings: ServerSettings, listeners: Sequence[socket.socket], reports: Connection) -> None:
    configure_logs(settings)
    try:
        # The other end of the pipe closes when the parent ends, however it ends.
        run_worker(
            settings,
            listeners,
            on_ready=lambda left_out: reports.send((READY, tuple(left_out))),
            stop_when_readable=reports.fileno(),
        )
    except TurnmillError as error:
        kind = "settings" if isinstance(error, SettingsError) else type(error).__name__
        reports.send((kind, str(error)))
        raise SystemExit(1) from None
    exit_despite_threads()
