import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from support.server_process import eventually
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog, TurnRecord
from turnmill.trajectories.address import JournalAddress
from turnmill.trajectory_page.run_list import PAGE_SIZE, RunList
from turnmill.trajectory_page.runs_app import OpenRuns, create_runs_app

TURN = TurnRecord(
    episode="t0-0", environment=0, turn=0, step=1, policy_version=0, prompt="A ball.", response="go", action="go",
    reward=1.0, response_ids=(0,), log_probs=(-0.5,), done=True, stop_reason="completed", images=("seen.png",),
)  # fmt: skip


def new_run(path: Path) -> RunFolder:
    made = RunFolder(path)
    made.create()
    made.write_job("spec: {}\n")
    TrajectoryLog(made).append([TURN])
    return made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def client(folder: Path) -> Iterator[TestClient]:
    with TestClient(create_runs_app(folder), base_url="http://127.0.0.1:8600") as made:
        yield made


def readers() -> int:
    """Return the number of threads that read logs."""
    return sum(thread.name == "index-updater" for thread in threading.enumerate())


def test_every_link_of_a_run_leads_to_that_run(client, folder):
    run = new_run(folder / "a run & more")
    TrajectoryLog(run).append([replace(TURN, episode="t0-1")])
    (run.episodes / "seen.png").write_bytes(b"png")
    base = "/run/a%20run%20%26%20more"
    eventually(lambda: "t0-1" in client.get(f"{base}/").text)

    pages = [client.get(f"{base}/"), client.get(f"{base}/trajectory/t0-0"), client.get(f"{base}/trajectory/none"),
             client.get(f"{base}/compare?a=t0-0&b=t0-0")]  # fmt: skip
    text = "".join(page.text for page in pages)

    assert f'<a href="{base}/">' in client.get("/").text
    assert [page.status_code for page in pages] == [200, 200, 404, 200]
    links = re.findall(r'(?:href|action|src)="(/[^"]*)"', text)
    assert len(links) > 20
    elsewhere = {link for link in links if not link.startswith((f"{base}/", "/static/"))}
    assert elsewhere == {"/"}
    assert f'data-base="{base}"' in text
    assert client.get(f"{base}/picture/seen.png").content == b"png"


def test_names_of_runs_are_escaped(client, folder):
    new_run(folder / "<img src=x onerror=alert(1)>")

    text = client.get("/?name=<img").text

    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert "<img" not in text
    assert client.get("/run/%3Cb%3E/").text.count("<b>") == 0


def test_a_long_list_has_pages(client, folder):
    for number in range(PAGE_SIZE + 1):
        new_run(folder / f"run-{number:02}")

    first, second = client.get("/?name=run"), client.get("/?name=run&page=2")

    assert 'href="/?name=run&amp;page=2"' in first.text
    assert first.text.count('<td><a href="/run/') == PAGE_SIZE
    assert second.text.count('<td><a href="/run/') == 1
    assert client.get("/?page=x").status_code == 404


def test_only_the_runs_asked_for_last_are_kept_open(folder, monkeypatch):
    for name in ("a", "b", "c"):
        new_run(folder / name)
    before = readers()
    opened = OpenRuns(RunList(folder), max_open=2)

    for name in ("a", "b", "a", "c"):
        opened._answer(name)

    assert opened.names == ["a", "c"]
    assert readers() - before == 2
    opened.close()
    assert readers() == before


def test_a_run_that_nobody_asks_for_is_closed_and_opened_again(folder):
    new_run(folder / "a")
    before = readers()
    opened = OpenRuns(RunList(folder), idle_seconds=-1)
    opened._answer("a")

    opened.close(idle_only=True)
    closed = readers()
    opened._answer("a")
    again = opened.names
    opened.close()

    assert closed == before
    assert again == ["a"]


def test_a_run_asked_for_lately_stays_open(folder):
    new_run(folder / "a")
    opened = OpenRuns(RunList(folder))
    opened._answer("a")

    opened.close(idle_only=True)

    assert opened.names == ["a"]
    opened.close()


def test_the_store_that_a_run_names_is_not_asked(client, folder, tmp_path):
    run = new_run(folder / "a")
    JournalAddress(f"unix://{tmp_path}/none", "a").write(run.path)

    # Reads the log, and then would ask the store.
    state = eventually(lambda: None if (found := client.get("/run/a/revision").json())["reading"] else found)

    assert state["problem"] == ""
    assert state["state"] == "going on"


def test_an_index_that_cannot_be_written_is_a_message(client, folder, monkeypatch, tmp_path):
    new_run(folder / "a")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    answer = client.get("/run/a/")

    assert answer.status_code == 503
    assert "Set XDG_CACHE_HOME" in answer.text


def test_the_health_does_not_depend_on_the_storage(client, folder):
    folder.rmdir()

    assert client.get("/healthz").text == "ok\n"
    assert client.get("/").status_code == 200


@pytest.mark.parametrize("path", ["/", "/run/a/", "/run/a/trajectory/t0-0"])
@pytest.mark.parametrize("method", ["post", "put", "delete"])
def test_only_reading_methods_are_allowed(client, folder, method, path):
    new_run(folder / "a")

    assert getattr(client, method)(path).status_code == 405
