"""`turnmill view` as a process, and its pages in a browser."""

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.view_process import START_SECONDS, ViewProcess
from turnmill.environments.rendering import write_gif
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog, TurnRecord

WORDS = ["go", " left", " right", "\n", "<img src=x onerror=pwned=1>", " on", "[2]"]
LIVE_MILLISECONDS = 20_000


def turn(episode: str, number: int = 0, *word_ids: int, **more: Any) -> TurnRecord:
    """A turn whose response has these words of the vocabulary, the first one with probability 1."""
    ids = word_ids or (0, 1)
    given = {"environment": int(episode[1]), "seed": 7, "step": 1, "policy_version": 0, "reward": 0.0, **more}
    return TurnRecord(
        episode=episode, turn=number, prompt="<sys>A ball.", response="".join(WORDS[word] for word in ids),
        action=WORDS[ids[0]], response_ids=ids, log_probs=(0.0, *(-3.0,) * (len(ids) - 1)), asked_at=1.7e9 + number,
        seconds={"generation": 0.25, "tools": 0.75}, environment_name="babyai GoToObj" if number == 0 else "", **given,
    )  # fmt: skip


def last(**more: Any) -> dict[str, Any]:
    return {"done": True, "stop_reason": "completed"} | more


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    made = RunFolder(tmp_path_factory.mktemp("page") / "run")
    made.create()
    made.write_job("spec: {environment: {name: babyai, task: GoToObj}}\n")
    made.vocabulary.write_text(json.dumps(WORDS))
    log = TrajectoryLog(made)
    log.append([turn("t0-0"), turn("t0-0", 1, 0, 5, observation_ids=(6,), **last(reward=1.0))])
    log.append([turn("t1-0", 0, 4, 4, **last(stop_reason="max_turns"))])
    log.append([turn("t2-0", **last(stop_reason="failed", failed_cause="environment", observation="It died."))])
    log.advantages.write_tokens(1, [("t0-0", 0, [0.5, -1.0]), ("t0-0", 1, [1.0, 0.0])])
    for step, way in ((1, 1), (2, 2)):
        version = {"step": step, "policy_version": step}
        log.append(
            [turn("v0-0", **version), turn("v0-0", 1, 0, way, **version, **last(reward=step - 1.0))], validation=True
        )
        pictures = [np.full((64, 64, 3), 80 * number, dtype=np.uint8) for number in range(3)]
        write_gif(pictures, made.episodes / f"validation-{step:06d}-0.gif")
    return made


def run_until_it_ends(*arguments: str, cache: Path) -> tuple[int, str]:
    server = ViewProcess(*arguments, cache=cache)
    try:
        _, errors = server.process.communicate(timeout=START_SECONDS)
    finally:
        server.process.kill()
    return server.process.returncode, errors


@pytest.fixture(scope="module")
def page_address(folder: RunFolder) -> Iterator[str]:
    server = ViewProcess(str(folder.path), "--port", "0", cache=folder.path.parent / "cache")
    try:
        yield server.address()
    finally:
        server.stop()


# ---- the command ----


def test_a_taken_port_is_an_error_with_a_way_out(folder, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, errors = run_until_it_ends(str(folder.path), "--port", port, cache=tmp_path)

    assert code == 2
    assert f"--port {port}: the port cannot be opened on 127.0.0.1" in errors
    assert "or 0 for a free one" in errors


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere", "holds no run"),
        ("redis://127.0.0.1:1/0", "Is the run still going?"),
        ("ftp://x", "nor the URL of a store"),
    ],
)
def test_a_location_without_a_run_is_an_error(place, message, tmp_path):
    code, errors = run_until_it_ends(place, "--port", "0", cache=tmp_path)

    assert code == 2
    assert message in errors
    assert "Traceback" not in errors


def test_ctrl_c_ends_the_server(folder, tmp_path):
    server = ViewProcess(str(folder.path), "--port", "0", cache=tmp_path)
    server.address()

    assert server.stop() == 0


# ---- the browser ----


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("There is no browser: apt-get install chromium.")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit(browser: Any, page_address: str) -> Iterator[Any]:
    """Open pages, and require that they have no errors and send requests only to their server."""
    context = browser.new_context(viewport={"width": 1300, "height": 900}, color_scheme="light")
    page = context.new_page()
    recorded: dict[str, list[str]] = {"requests": [], "errors": []}
    page.on("request", lambda request: recorded["requests"].append(request.url))
    page.on("pageerror", lambda error: recorded["errors"].append(str(error)))
    page.on("console", lambda message: recorded["errors"].append(message.text) if message.type == "error" else None)
    page.on("dialog", lambda dialog: recorded["errors"].append(dialog.message))

    def visit(path: str) -> Any:
        page.goto(page_address + path)
        return page

    yield visit
    context.close()
    assert recorded["errors"] == []
    assert [url for url in recorded["requests"] if not url.startswith(page_address + "/")] == []


def names(page: Any) -> list[str]:
    return [text.strip() for text in page.locator("#list tbody td:first-child").all_inner_texts()]


def background(page: Any, text: str, *, turn: int = 0) -> str:
    token = page.locator(f"#turn-{turn} .token", has_text=text).first
    token.wait_for()
    shade: str = token.evaluate("token => getComputedStyle(token).backgroundColor")
    return shade


def is_transparent(colour: str) -> bool:
    """Return whether a colour is transparent: `rgba(0, 0, 0, 0)` or `color(srgb 0 0 0 / 0)`."""
    return colour.endswith((", 0)", "/ 0)"))


def test_a_list_is_filtered_sorted_and_shared_by_its_address(visit):
    page = visit("/")
    everything = names(page)
    page.get_by_label("outcome").select_option("failed")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**/?outcome=failed")

    assert sorted(everything) == ["t0-0", "t1-0", "t2-0", "v0-0", "v0-0"]
    assert names(page) == ["t2-0"]
    page.get_by_role("link", name="Clear").click()
    page.get_by_label("reward", exact=True).fill("0.5")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?reward_from=0.5")
    page.get_by_role("link", name="turns").click()
    page.wait_for_url("**/?reward_from=0.5&sort=turns")
    assert sorted(names(page)) == ["t0-0", "v0-0"]


def test_a_trajectory_can_be_opened_and_read_with_the_keyboard_alone(visit):
    page = visit("/?sort=name")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_url("**/trajectory/t0-0?sort=name")

    page.keyboard.press("j")
    page.keyboard.press("j")
    page.wait_for_url("**#turn-1")
    assert page.locator(".turn.current h2").inner_text() == "Turn 1"
    page.keyboard.press("?")
    assert page.get_by_role("dialog").is_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("u")
    page.wait_for_url("**/?sort=name")


def test_tokens_are_coloured_by_log_prob_then_by_advantage_then_by_mask(visit):
    page = visit("/trajectory/t0-0")
    likely, unlikely = background(page, "go"), background(page, " left")
    page.keyboard.press("c")
    better, worse = background(page, "go"), background(page, " left")
    page.get_by_label("loss mask").check()
    learned, observed = background(page, "go", turn=1), background(page, "[2]", turn=1)

    assert is_transparent(likely)
    assert is_transparent(observed)
    assert not any(map(is_transparent, (unlikely, better, worse, learned)))
    assert len({unlikely, better, worse, learned}) == 4
    page.wait_for_url("**/trajectory/t0-0?colour=mask")
    page.reload()
    assert background(page, "go", turn=1) == learned
    assert "log-prob −3 " in (page.locator(".token", has_text=" left").first.get_attribute("title") or "")


def test_two_policies_are_compared_side_by_side(visit):
    page = visit("/trajectory/v0-0@1")
    page.locator("#peers summary").click()
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**/compare?a=v0-0%401&b=v0-0%402")

    left, right = page.locator(".sides.parting .side").all()
    assert "They differ from turn 1 on" in page.locator(".toolbar").inner_text()
    assert "go left" in left.inner_text()
    assert "go right" in right.inner_text()
    assert page.locator(".side .turn header", has_text="policy 2").count() == 2


def test_frames_are_shown_with_the_turns(visit):
    page = visit("/trajectory/v0-0@1")

    picture = page.get_by_alt_text("The environment after turn 0")
    picture.scroll_into_view_if_needed()
    page.wait_for_function("picture => picture.complete", arg=picture.element_handle())
    assert picture.evaluate("picture => picture.naturalWidth") == 64


def test_model_output_is_shown_and_not_executed(visit):
    page = visit("/trajectory/t1-0")

    page.locator(".token", has_text="onerror=pwned").first.wait_for()
    assert page.evaluate("typeof pwned") == "undefined"
    assert page.locator(".response img").count() == 0


def test_the_choice_of_light_or_dark_is_kept(visit):
    page = visit("/")
    shade = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(shade)
    page.keyboard.press("t")
    dark = page.evaluate(shade)
    page.reload()

    assert page.evaluate(shade) == dark != light


def test_a_list_shows_new_trajectories_of_the_run(visit, folder):
    page = visit("/?sort=name")
    TrajectoryLog(folder).append([turn("t8-0", step=2)])

    page.get_by_role("link", name="t8-0").wait_for(timeout=LIVE_MILLISECONDS)


def test_the_page_of_a_trajectory_shows_new_turns_and_keeps_its_view(visit, folder):
    log = TrajectoryLog(folder)
    log.append([turn("t9-0", step=2)])
    page = visit("/?name=t9-0")
    page.get_by_role("link", name="t9-0").click(timeout=LIVE_MILLISECONDS)
    page.locator("#turn-0 .prompt summary").click()
    page.keyboard.press("c")

    log.append([turn("t9-0", 1, step=2)])

    page.locator("#turn-1 .token").first.wait_for(timeout=LIVE_MILLISECONDS)
    assert page.locator("#turn-0 .prompt").get_attribute("open") is None
    assert page.locator("#live").get_attribute("data-colour") == "advantage"


def test_an_ended_trajectory_is_not_redrawn_when_others_change(visit, folder):
    page = visit("/trajectory/t0-0")
    page.evaluate("document.getElementById('turn-0').dataset.marked = 'yes'")
    before = page.evaluate("document.body.dataset.revision")

    TrajectoryLog(folder).append([turn("t7-0", step=2)])

    page.wait_for_function("before => document.body.dataset.revision !== before", arg=before)
    assert page.locator("#turn-0").get_attribute("data-marked") == "yes"


def test_a_page_reports_that_its_server_does_not_answer(browser, folder, tmp_path):
    server = ViewProcess(str(folder.path), "--port", "0", cache=tmp_path)
    page = browser.new_page()
    try:
        page.goto(server.address())
    finally:
        server.stop()

    page.get_by_text("does not answer: start it again").wait_for(timeout=LIVE_MILLISECONDS)
    page.close()
