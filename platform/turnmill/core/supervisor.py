"""Supervisor of several workers on one socket: starts them, replaces those that die, stops them together."""

import logging
import multiprocessing
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Literal, Protocol

from turnmill.core.errors import RunFailedError, SettingsError, TurnmillError

log = logging.getLogger(__name__)

START_SECONDS = 60.0
FIRST_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 10.0
TICK_SECONDS = 0.2
KILL_AFTER_SECONDS = 3.0
"""Time after the grace period; the sum is less than the 12 s within which verl-tool's children end."""

READY = "ready"

OnReady = Callable[[object], None]


class Work(Protocol):
    """What a worker does; it can be pickled."""

    def __call__(
        self, listeners: Sequence[socket.socket], *, on_ready: OnReady, stop_when_readable: int | None = None
    ) -> None:
        """Serve on the listeners until a signal, or until a descriptor is readable.

        Call `on_ready` once calls are accepted, with what the supervisor is to know. Raises TurnmillError if it cannot
        start.
        """


@dataclass(slots=True)
class _WorkerProcess:
    process: BaseProcess
    reports: Connection
    ready: bool = False
    content: object = None
    failure: TurnmillError | None = None


class Supervisor:
    """Keeps a number of workers running."""

    def __init__(
        self,
        work: Work,
        listeners: Sequence[socket.socket],
        *,
        num_workers: int,
        grace_seconds: float,
        on_ready: OnReady,
        name: str,
        start_method: Literal["spawn", "forkserver"] = "spawn",
    ) -> None:
        """Take what workers do, and how long they may take to stop.

        `on_ready` is called with what the first of them sent, once all are ready. With `forkserver`, workers begin as
        copies of a process that has imported what `multiprocessing.set_forkserver_preload` names.
        """
        self._work = work
        self._listeners = tuple(listeners)
        self._num_workers = num_workers
        self._grace_seconds = grace_seconds
        self._on_ready = on_ready
        self._name = name
        self._context = (
            multiprocessing.get_context("spawn")
            if start_method == "spawn"
            else multiprocessing.get_context("forkserver")
        )
        self._workers: list[_WorkerProcess] = []
        self._stopping = False
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._next_start = 0.0

    def run(self) -> None:
        """Serve until a signal. Raises SettingsError or RunFailedError if the first workers do not start."""
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._start_all()
            if not self._stopping:
                self._on_ready(self._workers[0].content)
            while not self._stopping:
                self._receive_reports()
                self._replace_dead_workers()
        finally:
            self._stop_workers()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: object) -> None:
        self._stopping = True

    def _start_all(self) -> None:
        self._workers = [self._start() for _ in range(self._num_workers)]
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
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_run_and_report, args=(self._work, self._listeners, theirs), name=self._name
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
                worker.ready, worker.content = True, content
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
        deadline = time.monotonic() + self._grace_seconds + KILL_AFTER_SECONDS
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                log.error("Worker does not end; killing it", extra={"process_id": worker.process.pid})
                worker.process.kill()
                worker.process.join()
            worker.process.close()


def _run_and_report(work: Work, listeners: Sequence[socket.socket], reports: Connection) -> None:
    try:
        # The other end of the pipe closes when the parent ends, however it ends.
        work(
            listeners,
            on_ready=lambda content: reports.send((READY, content)),
            stop_when_readable=reports.fileno(),
        )
    except TurnmillError as error:
        kind = "settings" if isinstance(error, SettingsError) else type(error).__name__
        reports.send((kind, str(error)))
        raise SystemExit(1) from None
