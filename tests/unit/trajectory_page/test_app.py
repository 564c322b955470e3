import html
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from starlette.testclient import TestClient

from support.long_log import write_long_log
from turnmill.core.errors import RunFailedError, SettingsError
from turnmill.environments.rendering import write_gif
from turnmill.observability.progress import Progress, write_progress
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog, TurnRecord
from turnmill.trajectory_page.app import create_app
from turnmill.trajectory_page.source import RunSource, open_source

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&lt;{{7*7}}"
TURN = TurnRecord(
    episode="t0-0", environment=0, turn=0, step=1, policy_version=0, prompt="A ball.", response="go", action="go",
    reward=1.0, response_ids=(0,), log_probs=(-0.5,), done=True, stop_reason="completed",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = RunFolder(tmp_path / "run")
    made.create()
    made.write_job("spec: {environment: {name: babyai, task: GoToObj}}\n")
    return made


class Visitor:
    """A client of a run's page; `update` brings the index up to date."""

    def __init__(self, folder: RunFolder) -> None:
        self.source = RunSource(folder.path)
        self.client = TestClient(create_app(self.source, pause_seconds=3600), base_url="http://127.0.0.1:8600")
        self.update()

    def update(self) -> None:
        for _ in self.source.update():
            pass

    def get(self, path: str, **headers: str) -> Any:
        return self.client.get(path, headers=headers)


@pytest.fixture
def visit(folder: RunFolder) -> Iterator[Any]:
    made: list[Visitor] = []

    def visit() -> Visitor:
        made.append(Visitor(folder))
        return made[-1]

    yield visit
    for each in made:
        each.source.close()


class Elements(HTMLParser):
    """The elements of a page with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))


def test_a_list_links_to_every_trajectory_and_keeps_the_filters(folder, visit):
    TrajectoryLog(folder).append([TURN, replace(TURN, episode="t1-0", reward=0.0)])

    page = visit().get("/?outcome=solved")

    assert page.status_code == 200
    assert 'href="/trajectory/t0-0?outcome=solved"' in page.text
    assert "t1-0" not in page.text
    assert "babyai GoToObj" in page.text


def test_text_of_a_trajectory_is_escaped(folder, visit):
    evil = replace(
        TURN, episode=EVIL, prompt=EVIL, response=EVIL, action=EVIL, observation=EVIL, stop_detail=EVIL,
        environment_name=EVIL, tool={EVIL: EVIL, "calls": [{"name": EVIL, "arguments": EVIL, "observation": EVIL}]},
        images=(EVIL,), done=False, stop_reason=EVIL,
    )  # fmt: skip
    folder.vocabulary.write_text(json.dumps([EVIL]))
    TrajectoryLog(folder).append([evil])
    TrajectoryLog(folder).append([replace(evil, step=step) for step in (1, 2)], validation=True)
    at = visit()
    keys = [summary.key for summary in at.source.index.summaries()]

    pages = [at.client.get("/", params={"name": EVIL, "environment": EVIL, "turns_from": EVIL})]
    pages += [at.client.get("/compare", params={"a": keys[1], "b": keys[2]})]
    pages += [at.get(html.unescape(link)) for link in re.findall(r'href="(/trajectory/[^"]+)"', pages[0].text)]
    nowhere = [at.client.get("/trajectory/" + quote(EVIL, safe="") + "~9"), at.client.get("/" + quote(EVIL))]

    assert [page.status_code for page in pages] == [200] * 5
    assert [page.status_code for page in nowhere] == [404] * 2
    for page in pages + nowhere:
        tags = Elements(page.text).tags
        sources = {attributes["src"] for tag, attributes in tags if tag == "script" and "src" in attributes}
        assert sources == {"/static/theme.js", "/static/page.js"}
        assert all(a.get("type") == "application/json" for tag, a in tags if tag == "script" and "src" not in a)
        assert not [name for _, attributes in tags for name in attributes if name.startswith("on")]
        assert "alert(1)</script>" not in page.text
        assert "{{7*7}}" in page.text
        assert "script-src 'self'" in page.headers["content-security-policy"]


def test_a_page_contains_the_tokens_for_the_script(folder, visit):
    folder.vocabulary.write_text(json.dumps([EVIL]))
    TrajectoryLog(folder).append([TURN])

    page = visit().get("/trajectory/t0-0")

    (columns,) = re.findall(r'<script type="application/json" class="columns">(.*?)</script>', page.text, re.S)
    assert json.loads(columns)["texts"] == [EVIL]


def test_a_trajectory_of_a_run_that_diverged_can_be_opened(folder, visit):
    log = TrajectoryLog(folder)
    log.append([replace(TURN, reward=math.nan)])
    log.advantages.write_tokens(1, [("t0-0", 0, [math.nan])])

    page = visit().get("/trajectory/t0-0")

    assert page.status_code == 200
    assert "reward nan" in page.text


@pytest.mark.parametrize("host", ["127.0.0.1:8600", "localhost", "LOCALHOST:1", "[::1]:8600", "10.0.0.7:80"])
def test_ip_addresses_and_localhost_are_allowed_hosts(visit, host):
    assert visit().get("/", host=host).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8600", "127.0.0.1.evil.example", "localhost.evil", ""])
@pytest.mark.parametrize("path", ["/", "/revision", "/static/page.js", "/trajectory/t0-0"])
def test_other_hosts_are_refused(folder, visit, host, path):
    TrajectoryLog(folder).append([TURN])

    answer = visit().get(path, host=host)

    assert answer.status_code == 421
    assert "--allow-host" in answer.text
    assert "t0-0" not in answer.text


def test_a_host_may_be_allowed(folder):
    source = RunSource(folder.path)
    client = TestClient(create_app(source, allowed_hosts=["Page.Example"]), base_url="http://page.example:8600")

    assert client.get("/").status_code == 200
    source.close()


def test_a_missing_trajectory_is_reported_as_not_found(visit):
    page = visit().get("/trajectory/t9-9")

    assert page.status_code == 404
    assert "There is no t9-9" in page.text


@pytest.mark.parametrize(
    "path",
    ["/nowhere", "/compare", "/compare?a=x&b=y", "/frame/x/t0-0", "/frame/0/t0-0", "/picture/none.png",
     "/picture/..%2Fjob.yaml", "/static/none.js", "/static/..%2fapp.py"],
)  # fmt: skip
def test_unknown_paths_are_not_found(folder, visit, path):
    TrajectoryLog(folder).append([TURN])

    assert visit().get(path).status_code == 404


@pytest.mark.parametrize("method", ["post", "put", "delete"])
def test_only_reading_methods_are_allowed(visit, method):
    assert getattr(visit().client, method)("/").status_code == 405


def test_problems_of_a_query_are_shown_on_the_page(folder, visit):
    TrajectoryLog(folder).append([TURN])

    page = visit().get("/?reward_from=much&sort=luck")

    assert page.status_code == 200
    assert "is not a number" in page.text
    assert "is not a valid order" in page.text
    assert "t0-0" in page.text


def test_an_empty_list_states_the_reason(folder, visit):
    at = visit()
    before = at.get("/").text
    TrajectoryLog(folder).append([TURN])
    at.update()

    assert "No trajectories yet" in before
    assert "The run is going on" in before
    assert "No trajectory matches these filters" in at.get("/?turns_from=9").text


def test_the_state_of_the_run_is_shown_and_updated(folder, visit):
    at = visit()
    going_on = at.get("/revision").json()
    folder.write_failure(RunFailedError("The disk is full.", "disk"))

    assert going_on["state"] == "going on"
    assert at.get("/revision").json()["text"] == "failed: The disk is full."
    assert "failed: The disk is full." in at.get("/").text


def test_a_run_is_done_when_an_attempt_has_ended_after_all_its_steps(folder, visit):
    at = visit()
    write_progress(folder, Progress("training", 20, 20))
    before = at.source.state()
    folder.mark("ended")

    assert before.name == "going on"
    assert at.source.state().name == "done"


@pytest.mark.parametrize(
    "progress",
    [Progress("starting"), Progress("warm start", 400, 400), Progress("validation"), Progress("training", 5, 20)],
)
def test_an_interrupted_run_is_not_done_and_is_going_on_once_it_is_resumed(folder, visit, progress):
    write_progress(folder, progress)
    folder.mark("ended")
    folder.write_summary({})
    at = visit()
    interrupted = at.source.state()
    folder.create()

    assert interrupted.name != "done"
    assert at.source.state().name == "going on"


def test_the_revision_increases_with_every_written_turn(folder, visit):
    at = visit()
    before = at.get("/revision").json()["revision"]
    TrajectoryLog(folder).append([TURN])
    at.update()

    assert at.get("/revision").json()["revision"] > before


def test_frames_of_a_validation_are_shown_with_its_turns(folder, visit):
    TrajectoryLog(folder).append([replace(TURN, episode="v0-0")], validation=True)
    write_gif(
        [np.full((8, 8, 3), shade, dtype=np.uint8) for shade in (0, 200)], folder.episodes / "validation-000001-0.gif"
    )
    at = visit()

    page = at.get("/trajectory/v0-0@1")

    pictures = re.findall(r'src="(/frame/[^"]+)"', page.text)
    assert pictures == ["/frame/0/v0-0@1", "/frame/1/v0-0@1"]
    assert {at.get(path).headers["content-type"] for path in pictures} == {"image/png"}


def test_only_observed_images_are_served(folder, visit):
    (folder.episodes / "seen.png").write_bytes(b"png")
    (folder.episodes / "page.html").write_text("<script>alert(1)</script>")
    TrajectoryLog(folder).append([replace(TURN, images=("seen.png",))])
    at = visit()

    assert 'src="/picture/seen.png"' in at.get("/trajectory/t0-0").text
    assert at.get("/picture/seen.png").headers["content-type"] == "image/png"
    assert at.get("/picture/page.html").status_code == 404


def test_a_comparison_names_the_first_turn_that_differs(folder, visit):
    log = TrajectoryLog(folder)
    for step, response in ((1, "left"), (2, "right")):
        first = replace(TURN, episode="v0-0", step=step, policy_version=step, done=False, stop_reason=None, reward=0.0)
        log.append(
            [first, replace(first, turn=1, response=response, done=True, stop_reason="completed")], validation=True
        )
    at = visit()

    page = at.client.get("/compare", params={"a": "v0-0@1", "b": "v0-0@2"})

    assert 'They differ from <a href="#a-1">turn 1</a> on' in page.text
    assert "/compare?a=v0-0%401&amp;b=v0-0%402" in at.get("/trajectory/v0-0@1").text
    assert page.text.count('class="turn"') == 4


def test_any_trajectory_of_a_long_log_can_be_opened(folder, visit):
    write_long_log(folder.path, trajectories=30)
    at = visit()

    for summary in at.source.index.summaries():
        page = at.get(f"/trajectory/{summary.key}")
        assert page.status_code == 200
        assert page.text.count('<article class="turn"') == len(at.source.index.turn_positions(summary.id))


def test_an_index_that_cannot_be_created_is_an_error_with_a_way_out(folder, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    with pytest.raises(SettingsError, match="Set XDG_CACHE_HOME"):
        open_source(str(folder.path))


def test_a_location_that_is_neither_folder_nor_store_is_refused():
    with pytest.raises(SettingsError, match="neither a run's folder nor the URL of a store"):
        open_source("http://127.0.0.1:6379")
