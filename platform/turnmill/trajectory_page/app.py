"""Web application with pages rendered on the server, and a script that colours tokens and follows a run."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import zip_longest
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles

from turnmill.trajectory_page import formatting
from turnmill.trajectory_page.filters import SORTS, fetch_list_page, peers, read_filters
from turnmill.trajectory_page.frames import frame_png
from turnmill.trajectory_page.index_updater import IndexUpdater
from turnmill.trajectory_page.rendering import PACKAGE_DIR, load_templates, render
from turnmill.trajectory_page.security import security_middleware
from turnmill.trajectory_page.source import Source
from turnmill.trajectory_page.store_reader import PREFIX
from turnmill.trajectory_page.summary import OUTCOMES, Summary
from turnmill.trajectory_page.turn_view import TurnView, build_turn_views

MAX_FILTER_CHOICES = 200
IMAGE_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}


class Pages:
    """Handlers of the page's URLs."""

    def __init__(self, source: Source, updater: IndexUpdater, base: str = "") -> None:
        self.source = source
        self.updater = updater
        self._base = base
        self._filter_choices: dict[str, tuple[int, list[str]]] = {}
        load_templates()

    def render(self, name: str, *, status: int = 200, **values: object) -> HTMLResponse:
        """Render a template as an HTML response."""
        common = {
            "base": self._base,
            "title": formatting.format_text(self.source.title),
            "state": self.source.state(),
            "reading": self.updater.reading,
            "problem": self.updater.problem,
            "revision": self.source.index.revision,
        }
        return render(name, common | values, status=status)

    def list_page(self, request: Request) -> Response:
        """Return the page with the trajectories that match the filters."""
        filters, problems = read_filters(request.query_params)
        found = fetch_list_page(self.source.index, filters)
        return self.render(
            "list.html",
            filters=filters.with_changes(page=found.page),
            problems=problems,
            found=found,
            sorts=tuple(SORTS),
            outcomes=OUTCOMES,
            environments=self._choices("environment"),
            runs=self._choices("run"),
            kinds=self._choices("kind"),
            empty=not self.source.index.rows("SELECT 1 FROM episodes LIMIT 1"),
        )

    def _choices(self, column: str) -> list[str]:
        """Return the values that a filter offers, queried once per revision of the index."""
        revision = self.source.index.revision
        known, values = self._filter_choices.get(column, (-1, []))
        if known != revision:
            found = self.source.index.rows(
                f"SELECT DISTINCT {column} FROM episodes ORDER BY 1 LIMIT {MAX_FILTER_CHOICES}"
            )
            values = [str(value) for (value,) in found]
            self._filter_choices[column] = revision, values
        return values

    def trajectory(self, request: Request, key: str) -> Response:
        """Return the page of one trajectory, turn by turn."""
        summary = self.source.index.find(key)
        if summary is None:
            return self._redirect_to_log(key) or self.missing(key)
        filters, _ = read_filters(request.query_params)
        return self.render(
            "trajectory.html",
            summary=summary,
            turns=self._turns(summary),
            peers=peers(self.source.index, summary),
            back=filters.query(),
            version_tag=_version_tag(summary),
        )

    def _redirect_to_log(self, key: str) -> Response | None:
        """Return a redirect from a trajectory that was in flight to its page in the log; None if it has none."""
        name = key.rpartition("/")[2] if key.startswith(PREFIX) else ""
        found = self.source.index.find(name) if name else None
        return RedirectResponse(f"{self._base}/trajectory/{formatting.quote_key(found.key)}") if found else None

    def missing(self, key: str) -> Response:
        """Return the 404 page."""
        return self.render("missing.html", status=404, key=formatting.format_text(key))

    def compare(self, a: str = "", b: str = "") -> Response:
        """Return the page with two trajectories side by side."""
        left, right = (self.source.index.find(key) for key in (a, b))
        if left is None or right is None:
            return self.missing(a if left is None else b)
        sides = [(summary, self._turns(summary)) for summary in (left, right)]
        return self.render(
            "compare.html",
            left=left,
            right=right,
            rows=_side_by_side(*(turns for _, turns in sides)),
            peers=peers(self.source.index, left),
            same_task=left.task == right.task,
            first_difference=_first_difference(*(turns for _, turns in sides)),
            version_tag=_version_tag(left) + _version_tag(right),
        )

    def _turns(self, summary: Summary) -> list[TurnView]:
        records = self.source.turns(summary)
        views = build_turn_views(records, summary, self.source.vocabulary, self.source.advantages(summary, records))
        path = self.source.animation(summary)
        return formatting.with_image_urls(views, summary, has_frames=path is not None, base=self._base)

    def frame(self, key: str, number: int) -> Response:
        """Return an image of the environment after a number of turns."""
        summary = self.source.index.find(key)
        path = self.source.animation(summary) if summary else None
        image = frame_png(path, number) if path else None
        if image is None:
            return Response("There is no such image.\n", status_code=404, media_type="text/plain")
        return Response(image, media_type="image/png", headers={"Cache-Control": "max-age=3600"})

    def picture(self, name: str) -> Response:
        """Return an image of an observation."""
        path = self.source.image(name)
        kind = IMAGE_TYPES.get(Path(name).suffix.lower())
        if path is None or kind is None:
            return Response("There is no such image.\n", status_code=404, media_type="text/plain")
        return FileResponse(path, media_type=kind)

    def revision(self) -> Response:
        """Return the revision of the index and the state of the run, by which a page detects changes."""
        reading, state = self.updater.reading, self.source.state()
        return JSONResponse(
            {
                "revision": self.source.index.revision,
                "state": state.name,
                "text": state.text,
                "reading": bool(reading),
                "problem": self.updater.problem,
            }
        )


def _version_tag(summary: Summary) -> str:
    """Return a tag that changes when the trajectory changes."""
    return f"{summary.id}:{summary.turns}:{summary.outcome};"


def _side_by_side(left: list[TurnView], right: list[TurnView]) -> list[tuple[TurnView | None, TurnView | None]]:
    return list(zip_longest(left, right))


def _first_difference(left: list[TurnView], right: list[TurnView]) -> int | None:
    """Return the position of the first turn that differs; None if all are equal."""
    for position, (a, b) in enumerate(_side_by_side(left, right)):
        if a is None or b is None or (a.response, a.observation) != (b.response, b.observation):
            return position
    return None


def create_app(source: Source, *, allowed_hosts: Iterable[str] = (), pause_seconds: float = 1.0) -> FastAPI:
    """Create the app that shows a source. It answers to IP addresses, to localhost and to the allowed hosts."""
    updater = IndexUpdater(source, pause_seconds=pause_seconds)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        updater.start()
        yield
        updater.stop()

    app = FastAPI(title="turnmill view", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.middleware("http")(security_middleware(allowed_hosts))
    app.mount("/static", StaticFiles(directory=PACKAGE_DIR / "static"))
    add_pages(app, Pages(source, updater))
    return app


def add_pages(app: FastAPI, pages: Pages) -> None:
    """Let an app answer with the pages of a source."""
    # Plain functions: FastAPI runs them in threads, as they read files.
    app.get("/")(pages.list_page)
    app.get("/compare")(pages.compare)
    app.get("/revision")(pages.revision)
    app.get("/frame/{number}/{key:path}")(pages.frame)
    app.get("/picture/{name}")(pages.picture)
    app.get("/trajectory/{key:path}")(pages.trajectory)

    @app.exception_handler(404)
    @app.exception_handler(RequestValidationError)
    def not_found(request: Request, _: Exception) -> Response:
        return pages.missing(request.url.path)
