"""Web application of a folder of runs: their list, and below it the pages of each run that somebody looks at."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from turnmill.core.errors import SettingsError
from turnmill.trajectory_page import formatting
from turnmill.trajectory_page.app import Pages, add_pages
from turnmill.trajectory_page.index_updater import IndexUpdater
from turnmill.trajectory_page.rendering import PACKAGE_DIR, load_templates, render
from turnmill.trajectory_page.run_list import RunList
from turnmill.trajectory_page.run_state import RunState
from turnmill.trajectory_page.security import security_middleware
from turnmill.trajectory_page.source import RunSource

MAX_OPEN_RUNS = 8
IDLE_SECONDS = 120.0
"""Seconds after which the log of a run that nobody looks at is no longer read; an open page asks every 2 s."""

CHECK_SECONDS = 10.0


class OpenRun:
    """The pages of one run, whose log is read until they are closed."""

    def __init__(self, path: Path, name: str) -> None:
        # Trajectories in flight are in the store, for which the page of a team has no password.
        source = RunSource(path, in_flight=False)
        self.last_request = time.monotonic()
        self._updater = IndexUpdater(source)
        self.app = FastAPI(title=name, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
        add_pages(self.app, Pages(source, self._updater, base=f"/run/{quote(name, safe='')}"))
        self._updater.start()

    def close(self) -> None:
        """Stop reading the log; its index is kept."""
        self._updater.stop()


class OpenRuns:
    """The runs that somebody looks at; an application that sends each request to the pages of its run."""

    def __init__(self, runs: RunList, *, max_open: int = MAX_OPEN_RUNS, idle_seconds: float = IDLE_SECONDS) -> None:
        self._runs = runs
        self._max_open = max_open
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._open: dict[str, OpenRun] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        answer = await asyncio.to_thread(self._answer, scope["path_params"]["name"])
        await answer(scope, receive, send)

    @property
    def names(self) -> list[str]:
        """Names of the runs that are open, the one asked for last at the end."""
        return list(self._open)

    def _answer(self, name: str) -> ASGIApp:
        try:
            run = self._opened(name)
        except SettingsError as error:
            return PlainTextResponse(f"{error}\n", status_code=503)
        return run.app if run else _missing(name)

    def _opened(self, name: str) -> OpenRun | None:
        with self._lock:
            run = self._open.pop(name, None)
            if run is None:
                path = self._runs.find(name)
                if path is None:
                    return None
                run = OpenRun(path, name)
            run.last_request = time.monotonic()
            self._open[name] = run
            surplus = [self._open.pop(each) for each in list(self._open)[: -self._max_open]]
        for each in surplus:
            each.close()
        return run

    def close(self, *, idle_only: bool = False) -> None:
        """Close all runs, or those that nobody has asked for lately."""
        limit = time.monotonic() - self._idle_seconds
        with self._lock:
            names = [name for name, run in self._open.items() if not idle_only or run.last_request < limit]
            closed = [self._open.pop(name) for name in names]
        for run in closed:
            run.close()


class RunsPages:
    """Handlers of the list of runs."""

    def __init__(self, runs: RunList) -> None:
        self._runs = runs

    def list_page(self, name: str = "", page: int = 1) -> Response:
        """Return the page with the runs whose names contain a text."""
        found = self._runs.fetch_page(name.strip(), page)
        return render("runs.html", self._common() | {"found": found, "name": name.strip()})

    def revision(self) -> Response:
        """Return the revision of the list, by which a page detects changes."""
        state = self._state()
        return JSONResponse(
            {
                "revision": self._runs.revision,
                "state": state.name,
                "text": state.text,
                "reading": False,
                "problem": self._runs.problem,
            }
        )

    def missing(self, request: Request, _: Exception) -> Response:
        """Return the 404 page."""
        return _missing(request.url.path)

    def _common(self) -> dict[str, object]:
        state = self._state()
        return _page_values(self._runs.path.name, state, self._runs.problem, self._runs.revision)

    def _state(self) -> RunState:
        number = len(self._runs.entries())
        return RunState("listed", f"{formatting.format_count(number)} {'run' if number == 1 else 'runs'}")


def _page_values(title: str, state: RunState, problem: str, revision: int) -> dict[str, object]:
    return {
        "base": "",
        "title": formatting.format_text(title),
        "state": state,
        "reading": None,
        "problem": problem,
        "revision": revision,
    }


def _missing(name: str) -> HTMLResponse:
    values = _page_values("runs", RunState("unknown", ""), "", 0)
    return render("no-run.html", values | {"name": formatting.format_text(name)}, status=404)


def create_runs_app(path: Path, *, allowed_hosts: Iterable[str] = ()) -> FastAPI:
    """Create the app that shows the runs in a folder. It answers to IP addresses, localhost and the allowed hosts."""
    load_templates()
    runs = RunList(path)
    pages, opened = RunsPages(runs), OpenRuns(runs)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        closing = asyncio.create_task(_close_idle_runs(opened))
        yield
        closing.cancel()
        await asyncio.to_thread(opened.close)

    app = FastAPI(
        title="turnmill view --runs", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None,
        redirect_slashes=False,
    )  # fmt: skip
    app.middleware("http")(security_middleware(allowed_hosts))
    app.mount("/static", StaticFiles(directory=PACKAGE_DIR / "static"))
    app.get("/")(pages.list_page)
    app.get("/revision")(pages.revision)
    app.get("/healthz")(_health)
    app.mount("/run/{name}", opened)
    app.exception_handler(404)(pages.missing)
    app.exception_handler(RequestValidationError)(pages.missing)
    return app


async def _health() -> Response:
    """Answer without the storage: a new process would not repair it."""
    return PlainTextResponse("ok\n")


async def _close_idle_runs(opened: OpenRuns) -> None:
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        await asyncio.to_thread(opened.close, idle_only=True)
