"""The pages, rendered on this side; a script colours them and follows a run."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles

from turnmill.trajectory_page import formatting as shown
from turnmill.trajectory_page.detail import TurnView, turn_views
from turnmill.trajectory_page.filters import SORTS, listed, peers, read_filters
from turnmill.trajectory_page.follower import Follower
from turnmill.trajectory_page.frames import frame_png
from turnmill.trajectory_page.guard import guard
from turnmill.trajectory_page.source import Source
from turnmill.trajectory_page.store import PREFIX
from turnmill.trajectory_page.summary import OUTCOMES, Summary

HERE = Path(__file__).parent
MAX_OFFERED = 200
PICTURES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}


class Pages:
    """What the addresses answer."""

    def __init__(self, source: Source, follower: Follower) -> None:
        self.source = source
        self.follower = follower
        self._offered: dict[str, tuple[int, list[str]]] = {}
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= shown.FILTERS
        self._templates.filters["path"] = lambda key: quote(key, safe="/@~-_.")
        # Read now, and not while the first visitor waits.
        for name in self._templates.list_templates():
            self._templates.get_template(name)

    def render(self, name: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """A page from its template."""
        common = {
            "title": shown.text(self.source.title),
            "state": self.source.state(),
            "reading": self.follower.reading,
            "problem": self.follower.problem,
            "revision": self.source.index.revision,
        }
        return HTMLResponse(self._templates.get_template(name).render(common | values), status_code=status)

    def list_page(self, request: Request) -> Response:
        """The trajectories that fit the filters."""
        filters, problems = read_filters(request.query_params)
        found = listed(self.source.index, filters)
        return self.render(
            "list.html",
            filters=filters.with_(page=found.page),
            problems=problems,
            found=found,
            sorts=tuple(SORTS),
            outcomes=OUTCOMES,
            environments=self._values("environment"),
            runs=self._values("run"),
            kinds=self._values("kind"),
            empty=not self.source.index.rows("SELECT 1 FROM episodes LIMIT 1"),
        )

    def _values(self, column: str) -> list[str]:
        """What a filter offers; looked up once after every change."""
        revision = self.source.index.revision
        known, values = self._offered.get(column, (-1, []))
        if known != revision:
            found = self.source.index.rows(f"SELECT DISTINCT {column} FROM episodes ORDER BY 1 LIMIT {MAX_OFFERED}")
            values = [str(value) for (value,) in found]
            self._offered[column] = revision, values
        return values

    def trajectory(self, request: Request, key: str) -> Response:
        """One trajectory, turn by turn."""
        summary = self.source.index.find(key)
        if summary is None:
            return self._ended(key) or self.missing(key)
        filters, _ = read_filters(request.query_params)
        return self.render(
            "trajectory.html",
            summary=summary,
            turns=self._turns(summary),
            peers=peers(self.source.index, summary),
            back=filters.query(),
            stamp=_stamp(summary),
        )

    def _ended(self, key: str) -> Response | None:
        """Where a trajectory that was in flight has gone."""
        name = key.rpartition("/")[2] if key.startswith(PREFIX) else ""
        found = self.source.index.find(name) if name else None
        return RedirectResponse(f"/trajectory/{quote(found.key, safe='/@~-_.')}") if found else None

    def missing(self, key: str) -> Response:
        """There is no such trajectory."""
        return self.render("missing.html", status=404, key=shown.text(key))

    def compare(self, a: str = "", b: str = "") -> Response:
        """Two trajectories side by side."""
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
            alike=left.task == right.task,
            parting=_parting(*(turns for _, turns in sides)),
            stamp=_stamp(left) + _stamp(right),
        )

    def _turns(self, summary: Summary) -> list[TurnView]:
        records = self.source.turns(summary)
        views = turn_views(records, summary, self.source.vocabulary, self.source.worth(summary, records))
        path = self.source.frames(summary)
        return shown.with_pictures(views, summary, drawn=path is not None)

    def frame(self, key: str, number: int) -> Response:
        """What the environment looked like after so many turns."""
        summary = self.source.index.find(key)
        path = self.source.frames(summary) if summary else None
        picture = frame_png(path, number) if path else None
        if picture is None:
            return Response("There is no such picture.\n", status_code=404, media_type="text/plain")
        return Response(picture, media_type="image/png", headers={"Cache-Control": "max-age=3600"})

    def picture(self, name: str) -> Response:
        """A picture that an observation held."""
        path = self.source.picture(name)
        kind = PICTURES.get(Path(name).suffix.lower())
        if path is None or kind is None:
            return Response("There is no such picture.\n", status_code=404, media_type="text/plain")
        return FileResponse(path, media_type=kind)

    def revision(self) -> Response:
        """Whether there is something new to show."""
        reading, state = self.follower.reading, self.source.state()
        return JSONResponse(
            {
                "revision": self.source.index.revision,
                "state": state.name,
                "text": state.text,
                "reading": bool(reading),
                "problem": self.follower.problem,
            }
        )


def _stamp(summary: Summary) -> str:
    """Something else when there is something new to show of it."""
    return f"{summary.id}:{summary.turns}:{summary.outcome};"


def _side_by_side(left: list[TurnView], right: list[TurnView]) -> Iterable[tuple[TurnView | None, TurnView | None]]:
    length = max(len(left), len(right))
    return [
        (left[number] if number < len(left) else None, right[number] if number < len(right) else None)
        for number in range(length)
    ]


def _parting(left: list[TurnView], right: list[TurnView]) -> int | None:
    """The position of the first turn that is not the same on both sides; None where all are."""
    for position, (a, b) in enumerate(_side_by_side(left, right)):
        if a is None or b is None or (a.response, a.observation) != (b.response, b.observation):
            return position
    return None


def create_app(source: Source, *, names: Iterable[str] = (), pause_seconds: float = 1.0) -> FastAPI:
    """The app that shows a source; it answers to addresses, to localhost and to these names."""
    follower = Follower(source, pause_seconds=pause_seconds)
    pages = Pages(source, follower)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        follower.start()
        yield
        follower.stop()

    app = FastAPI(title="turnmill view", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.middleware("http")(guard(names))
    app.mount("/static", StaticFiles(directory=HERE / "static"))

    # Plain functions: reading is done in threads beside the event loop.
    app.get("/")(pages.list_page)
    app.get("/compare")(pages.compare)
    app.get("/revision")(pages.revision)
    app.get("/frame/{number}/{key:path}")(pages.frame)
    app.get("/picture/{name}")(pages.picture)
    app.get("/trajectory/{key:path}")(pages.trajectory)

    @app.exception_handler(404)
    @app.exception_handler(RequestValidationError)
    def nowhere(request: Request, _: Exception) -> Response:
        return pages.missing(request.url.path)

    return app
