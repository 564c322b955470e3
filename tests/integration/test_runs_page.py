"""`turnmill view --runs` as a process, over a folder that it cannot write to."""

import http.client
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.contained_tests import can_contain
from support.server_process import eventually
from support.view_process import START_SECONDS, ViewProcess, new_run
from turnmill.observability import json_lines
from turnmill.observability.run_folder import RunFolder
from turnmill.trajectory_page.index_updater import PAUSE_SECONDS

# In a mount namespace of its own: the test still writes to the folder.
READ_ONLY = (
    'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && ! touch "$1/x" 2>/dev/null && shift && exec "$@"'
)
LINE_END = b"\n"


def log_file(run: RunFolder) -> Path:
    (found,) = run.trajectories.glob("step-*.jsonl")
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a team: a run that is done, one that goes on, one with half of its files, and other things."""
    made = tmp_path_factory.mktemp("claim") / "team-a"
    new_run(made / "done-1", step=20, steps=20).mark("ended")
    new_run(made / "going-2.attempt-3", step=7, steps=20)
    (made / "going-2").symlink_to("going-2.attempt-3")
    broken = new_run(made / "half-3", step=1, steps=2)
    broken.failure.write_text('{"message": "The di')
    broken.progress.write_text('{"phase": ')
    broken.marks.write_text('{"event":"sta')
    (made / "no-run").mkdir()
    (made / ".warm-starts").mkdir()
    new_run(made.parent / "elsewhere", step=3, steps=3)
    (made / "link-out").symlink_to("../elsewhere")
    return made


@pytest.fixture(scope="module")
def page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    if not can_contain():
        pytest.skip("a read-only mount needs unshare and the right to make namespaces")
    rights = [] if os.geteuid() == 0 else ["--map-root-user"]
    behind = ["unshare", "--mount", *rights, "--", "sh", "-c", READ_ONLY, "sh", str(runs)]
    options = ["--runs", str(runs), "--port", "0", "--allow-host", "Runs.Example.com"]
    server = ViewProcess(*options, cache=tmp_path_factory.mktemp("cache"), behind=behind)
    try:
        with httpx.Client(base_url=server.address(), timeout=30) as client:
            yield client
    finally:
        server.stop()


def list_with(page: httpx.Client, run: str, trajectory: str) -> str:
    """Return the list of a run once its log is read up to a trajectory."""
    link = f'href="/run/{run}/trajectory/{trajectory}'
    text: str = eventually(lambda: text if link in (text := page.get(f"/run/{run}/").text) else "", START_SECONDS)
    return text


def test_all_runs_of_the_folder_are_listed_with_their_states(page):
    text = page.get("/").text

    assert '<a href="/run/done-1/">done-1</a>' in text
    assert '<a href="/run/going-2/">going-2</a>' in text
    assert "training 7/20" in text
    assert "done, training 20/20" in text
    assert "state cannot be read" in text
    assert "3 runs" in text
    assert not [name for name in ("attempt-", "no-run", "warm-starts", "link-out") if name in text]


def test_trajectories_of_each_run_are_shown_and_the_folder_stays_as_it_is(page, runs):
    before = snapshot(runs)

    for run in ("done-1", "going-2", "half-3"):
        list_with(page, run, "t0-0")
        trajectory = page.get(f"/run/{run}/trajectory/t0-0")
        assert trajectory.status_code == 200
        assert "A ball." in trajectory.text
        assert page.get(f"/run/{run}/compare?a=t0-0&b=t0-0").status_code == 200
        assert page.get(f"/run/{run}/revision").json()["problem"] == ""

    assert snapshot(runs) == before


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of change of everything in a folder."""
    found = {str(path): path.lstat() for path in folder.rglob("*")}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


def test_half_of_a_line_is_shown_once_it_is_whole(page, runs):
    log = log_file(RunFolder(runs / "going-2"))
    line = json_lines.encode({"episode": "t5-0", "environment": 5, "turn": 0, "step": 1, "policy_version": 0,
                              "prompt": "", "response": "go", "action": "go", "reward": 0.0, "done": True,
                              "stop_reason": "max_turns"}).rstrip(LINE_END)  # fmt: skip
    with log.open("ab") as file:
        file.write(line[:30])
        file.flush()
        list_with(page, "going-2", "t0-0")
        # Its log is read once more meanwhile, which changes nothing.
        time.sleep(2 * PAUSE_SECONDS)
        half = page.get("/run/going-2/").text
        revision = page.get("/run/going-2/revision").json()
        file.write(line[30:] + LINE_END)

    assert "t5-0" not in half
    assert revision["problem"] == ""
    list_with(page, "going-2", "t5-0")


@pytest.mark.parametrize("path", ["/", "/revision", "/healthz", "/static/page.js", "/run/done-1/", "/run/none/"])
@pytest.mark.parametrize("host", ["evil.example", "runs.example.com.evil.example", "example.com", ""])
def test_other_hosts_are_refused_everywhere(page, path, host):
    answer = page.get(path, headers={"Host": host})

    assert answer.status_code == 421
    assert "done-1" not in answer.text


def test_the_named_host_and_addresses_are_answered(page):
    hosts = ["runs.example.com", "RUNS.example.com:443", "10.0.0.7:8600", "[fd00::7]:8600"]

    assert {page.get("/run/done-1/", headers={"Host": host}).status_code for host in hosts} == {200}


@pytest.mark.parametrize(
    "path",
    ["/run/../", "/run/..", "/run/../../elsewhere/", "/run/%2e%2e/", "/run/..%2felsewhere/", "/run/%2e%2e%2felsewhere/",
     "/run/./", "/run/.warm-starts/", "/run/link-out/", "/run/no-run/", "/run/going-2.attempt-3/", "/run/%00/",
     "/run//", "/run//etc/passwd", "/run/%2fetc/", "/run/" + "x" * 5000 + "/", "/run/done-1/../half-3/",
     "/run/done-1/picture/..%2fjob.yaml", "/run/done-1/picture/..%2f..%2fhalf-3%2fjob.yaml", "/run/done-1/job.yaml",
     "/run/done-1/static/page.js", "/static/../app.py", "/static/..%2fapp.py", "/job.yaml", "/trajectory/t0-0"],
)  # fmt: skip
def test_paths_that_lead_elsewhere_are_not_found(page, path):
    # As bytes, since clients tidy paths up.
    connection = http.client.HTTPConnection(page.base_url.host, page.base_url.port, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()

    assert answer.status == 404
    assert "babyai" not in text


def test_a_folder_that_does_not_exist_yet_has_no_runs(tmp_path):
    server = ViewProcess("--runs", str(tmp_path / "team-b"), "--port", "0", cache=tmp_path)
    try:
        address = server.address()
        before = httpx.get(address).text
        new_run(tmp_path / "team-b" / "first", step=1, steps=2)
        eventually(lambda: "/run/first/" in httpx.get(address).text)
    finally:
        code = server.stop()

    assert "No runs yet" in before
    assert code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--runs", "RUN"], "is the folder of one run. Omit --runs"),
        (["--runs", "RUN/job.yaml"], "is not a folder"),
        (["--runs", "redis://127.0.0.1:6379/0"], "is not a folder"),
        (["--runs", "RUN", "--namespace", "team-a"], "need the name of a job"),
        (["RUN", "--allow-host", "https://runs.example.com"], "is no host name"),
        (["RUN", "--allow-host", "runs.example.com:443"], "is no host name"),
        (["RUN", "--allow-host", "*.example.com"], "is no host name"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments, message, tmp_path):
    run = new_run(tmp_path / "run", step=1, steps=2).path
    given = [argument.replace("RUN", str(run)) for argument in arguments]
    server = ViewProcess(*given, "--port", "0", cache=tmp_path / "cache")
    try:
        _, errors = server.process.communicate(timeout=START_SECONDS)
    except subprocess.TimeoutExpired:
        server.process.kill()
        raise

    assert server.process.returncode == 2
    assert message in " ".join(errors.split())
