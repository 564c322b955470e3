"""Several servers that share a store: any server serves any turn, also in place of one that died."""

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import redis

from support.server_process import NewServer, ServerProcess, alive, eventually
from turnmill.core.errors import ToolCallPoisonError
from turnmill.rollout.tool_agent.client import ToolRequest, ToolServerClient
from turnmill.testing.agent_loops import END, TOKENIZER, ToolLoopHarness, tool_job
from turnmill.testing.policies import Request

PATIENT = {"timeout_seconds": 60, "outage_seconds": 60, "max_retries": 3, "max_connections": 1}


@pytest.fixture
def pair(new_server: NewServer, redis_url: str) -> list[ServerProcess]:
    return [new_server("--tool_type", "trial,bash_terminal", "--redis", redis_url) for _ in range(2)]


@pytest.fixture
def stalled_store(redis_url: str) -> Iterator[int]:
    """Pause the store's process until the end of the test; return its pid."""
    with redis.Redis.from_url(redis_url, protocol=2) as client:
        pid = int(client.info("server")["process_id"])
    os.kill(pid, signal.SIGSTOP)
    yield pid
    os.kill(pid, signal.SIGCONT)


@pytest.mark.feature("verl-tool", "a trajectory finds its back-end")
def test_any_server_serves_any_turn(pair: list[ServerProcess]):
    first, second = pair

    first.observe("<bash>cd /tmp; export WORD=kept; echo there > ~/file</bash>")
    answer = second.observe("<bash>echo $WORD; cat ~/file</bash>")

    assert answer == "\n<o>\nuser@bash-session:/tmp$ echo $WORD; cat ~/file\nkept\nthere\n</o>\n"


def test_a_repeat_on_another_server_gets_the_first_result_and_has_no_effect(pair: list[ServerProcess]):
    first, second = pair

    answers = [server.observe("count", call_id="1") for server in (first, second, first)]

    assert answers == ["count 1"] * 3
    assert second.observe("count", call_id="2") == "count 2"
    assert second.metric('turnmill_tool_replays_total{tool="trial"}') == 1


def test_calls_of_one_trajectory_on_several_servers_are_serialized(pair: list[ServerProcess]):
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(pair[number % 2].observe, "count", call_id=str(number)) for number in range(20)]
        answers = {call.result() for call in calls}

    assert answers == {f"count {number}" for number in range(1, 21)}


@pytest.mark.feature("verl-tool", "a back-end that died")
def test_the_call_of_a_killed_server_is_executed_once_by_another(
    contained: None, pair: list[ServerProcess], trial_folder: Path
):
    killed, other = pair
    other.observe("count", call_id="0")
    with ThreadPoolExecutor() as pool:
        lost = pool.submit(killed.post, ["t"], ["hold"], extra_fields=[{"call_id": "1"}])
        eventually(lambda: list(trial_folder.glob("held-*")))
        killed.kill()
        assert lost.exception() is not None
    (trial_folder / "go").touch()

    assert other.observe("hold", call_id="1") == "hold 2"
    assert other.observe("count", call_id="2") == "count 3"


def test_a_paused_server_is_fenced_off_and_returns_the_other_servers_result(
    contained: None, pair: list[ServerProcess], trial_folder: Path
):
    paused, other = pair
    with ThreadPoolExecutor() as pool:
        late = pool.submit(paused.observe, "hold", call_id="1")
        eventually(lambda: list(trial_folder.glob("held-*")))
        paused.process.send_signal(signal.SIGSTOP)
        (trial_folder / "go").touch()
        in_time = other.observe("hold", call_id="1")
        paused.process.send_signal(signal.SIGCONT)

        assert in_time == "hold 1"
        assert late.result() == "hold 1"
    assert other.observe("count", call_id="2") == "count 2"
    assert paused.metric("turnmill_tool_fenced_writers_total") == 1


def test_a_poison_call_kills_three_servers_at_most(
    contained: None, new_server: NewServer, redis_url: str, trial_folder: Path
):
    servers = [new_server("--tool_type", "trial", "--redis", redis_url) for _ in range(4)]
    for number, server in enumerate(servers[:3], start=1):
        with ThreadPoolExecutor() as pool:
            lost = pool.submit(server.post, ["t"], ["hold"], extra_fields=[{"call_id": "1"}])
            eventually(lambda number=number: len(list(trial_folder.glob("held-*"))) == number)
            server.kill()
            assert lost.exception() is not None

    async def call() -> None:
        async with ToolServerClient([servers[3].url], **PATIENT) as client:
            await client.call(ToolRequest("t", "hold", {"call_id": "1"}))

    with pytest.raises(ToolCallPoisonError, match="answered 409"):
        asyncio.run(call())
    assert len(list(trial_folder.glob("held-*"))) == 3
    assert servers[3].observe("count", call_id="2") == "count 1"


def test_a_call_after_one_that_the_store_lost_is_refused(pair: list[ServerProcess], redis_url: str):
    first, second = pair
    (version,) = first.post(["t"], ["count"], extra_fields=[{"call_id": "1"}]).json()["versions"]
    extra = {"call_id": "2", "after_version": version}
    assert second.post(["t"], ["count"], extra_fields=[extra]).json()["observations"] == ["count 2"]
    with redis.Redis.from_url(redis_url, protocol=2) as client:
        client.flushall()

    refused = second.post(["t"], ["count"], extra_fields=[extra | {"call_id": "3"}])

    assert (refused.status_code, refused.json()["cause"]) == (409, "lost_write")
    assert version in refused.json()["detail"]


def test_a_trajectory_of_tools_without_state_goes_on_where_the_store_lost_its_calls(
    new_server: NewServer, redis_url: str
):
    server = new_server("--tool_type", "python_code", "--redis", redis_url)
    call = "<python>print(1)</python>"
    (version,) = server.post(["t"], [call], extra_fields=[{"call_id": "1"}]).json()["versions"]
    assert version == ""
    with redis.Redis.from_url(redis_url, protocol=2) as client:
        client.flushall()

    answer = server.post(["t"], [call], extra_fields=[{"call_id": "2", "after_version": version}])

    assert answer.status_code == 200


async def test_an_agent_loop_has_calls_executed_again_that_the_store_lost(
    new_server: NewServer, redis_url: str, tmp_path: Path
):
    server = new_server("--tool_type", "bash_terminal", "--redis", redis_url)
    calls = ["<bash>export WORD=kept; echo there > ~/file</bash>", "<bash>echo $WORD; cat ~/file</bash>"]
    answers = iter([*calls, f"done{END}"])

    def answer(request: Request) -> str:
        response = next(answers)
        if response == calls[1]:
            with redis.Redis.from_url(redis_url, protocol=2) as client:
                client.flushall()
        return response

    job = tool_job(stopTokens=["</bash>"], maxTurns=2, toolCallTimeout=60.0, maxResponseLength=2000)
    harness = ToolLoopHarness(tmp_path / "run", answer, job, server.url)
    try:
        result = await harness.play()
    finally:
        await harness.loop.close()

    text = "".join(TOKENIZER.decode(row.response.ids) for row in result.rows)
    assert "kept\nthere\n" in text


def test_a_version_that_no_reply_has_is_refused(new_server: NewServer, redis_url: str):
    server = new_server("--tool_type", "trial", "--redis", redis_url)
    for version in ("1", " 1 call", "1\n2", 7, {"a": 1}, "9" * 17 + " call", "1 " + "x" * 513):
        extra = {"call_id": "2", "after_version": version}

        assert server.post(["t"], ["count"], extra_fields=[extra]).status_code == 422, version


def test_a_stopping_server_releases_its_claims_after_the_grace_period(
    new_server: NewServer, redis_url: str, trial_folder: Path
):
    options = ("--tool_type", "trial", "--redis", redis_url)
    stopping = new_server(*options, "--grace-seconds", "0.3")
    with ThreadPoolExecutor() as pool:
        given_up = pool.submit(stopping.post, ["t"], ["hold"], extra_fields=[{"call_id": "1"}])
        eventually(lambda: list(trial_folder.glob("held-*")))

        assert stopping.stop() == 0
        assert given_up.exception() is not None or given_up.result().status_code != 200
    with redis.Redis.from_url(redis_url, protocol=2, decode_responses=True) as client:
        claims = [
            field
            for key in client.scan_iter("*trajectory*")
            if client.type(key) == "hash"
            for field in client.hkeys(key)
            if field.startswith(("lock ", "claim "))
        ]
    assert claims == []


@pytest.mark.feature("verl-tool", "a back-end that died")
def test_a_killed_worker_is_replaced_and_the_others_continue(contained: None, new_server: NewServer):
    server = new_server("--tool_type", "trial", "--uvi_workers", "2")
    workers = [pid for pid in server.children() if "spawn_main" in command(pid)]
    assert len(workers) == 2

    os.kill(workers[0], signal.SIGKILL)

    eventually(lambda: len([pid for pid in server.children() if "spawn_main" in command(pid)]) == 2)
    answers = []
    for _ in range(5):
        body = {"trajectory_ids": ["t"], "actions": ["count"]}
        response = server.http.post("/get_observation", json=body, headers={"Connection": "close"})
        answers += response.json()["observations"]
    assert answers == [f"count {number}" for number in range(1, 6)]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_killed_server_leaves_no_processes(contained: None, new_server: NewServer, workers: str):
    server = new_server("--tool_type", "trial,python_code", "--uvi_workers", workers)
    server.observe("<python>print(1)</python>")
    descendants = server.children()
    assert descendants

    server.kill()

    eventually(lambda: not [pid for pid in descendants if alive(pid)])


def test_a_paused_store_is_answered_with_503_and_the_server_recovers(
    contained: None, new_server: NewServer, redis_url: str, request: pytest.FixtureRequest
):
    server = new_server("--tool_type", "trial", "--redis", redis_url, "--store-wait-seconds", "1")
    assert server.observe("count", call_id="1") == "count 1"

    pid = request.getfixturevalue("stalled_store")
    failed = server.post(["t"], ["count"], extra_fields=[{"call_id": "2"}])
    os.kill(pid, signal.SIGCONT)

    assert failed.status_code == 503
    assert failed.json()["cause"] == "store_unavailable"
    assert failed.headers["Retry-After"]
    # The request that was sent during the pause may claim the call until its lease ends.
    repeated = eventually(lambda: successful(server.post(["t"], ["count"], extra_fields=[{"call_id": "2"}])))
    assert repeated.json()["observations"] == ["count 2"]
    assert server.http.get("/health").status_code == 200


def test_a_clients_deadline_bounds_the_wait_for_the_store(
    contained: None, new_server: NewServer, redis_url: str, request: pytest.FixtureRequest
):
    server = new_server("--tool_type", "trial", "--redis", redis_url)
    request.getfixturevalue("stalled_store")

    response = server.http.post(
        "/get_observation",
        json={"trajectory_ids": ["t"], "actions": ["count"]},
        headers={"X-Deadline-Seconds": "0.5"},
    )

    assert response.status_code == 503
    assert response.json()["cause"] in ("store_unavailable", "timeout")


def successful(response: httpx.Response) -> httpx.Response | None:
    return response if response.status_code == 200 else None


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
