"""One server over HTTP, with the default sandbox and store."""

import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from support.server_process import NewServer, ServerProcess, alive, eventually

CALL = '<python>print("hello", 6 * 7)</python>'


@pytest.fixture
def server(new_server: NewServer) -> ServerProcess:
    return new_server("--tool_type", "trial,python_code,bash_terminal")


@pytest.mark.feature("verl-tool", "order of results")
def test_actions_of_several_tools_are_answered_in_their_order(server: ServerProcess):
    actions = ["<bash>echo $((1 + 1))</bash>", CALL, "count", "no action", ""]
    response = server.post([f"t{n}" for n in range(5)], actions, finish=[False] * 4 + [True])

    body = response.json()
    assert body["observations"][:3] == [
        "\n<o>\nuser@bash-session:~$ echo $((1 + 1))\n2\n</o>\n",
        "\n<result>\nhello 42\n</result>\n",
        "count 1",
    ]
    assert body["observations"][3]["invalid_reason"] == "No valid tool found for action"
    assert body["observations"][3]["available_tools"].startswith("Available tools:\n• trial: meet N")
    assert body["observations"][4] == ""
    assert body["dones"] == [False, False, False, False, True]
    assert body["valids"] == [True, True, True, False, True]


@pytest.mark.feature("verl-tool", "an action that no tool takes")
def test_a_server_ends_trajectories_at_an_invalid_action_if_it_is_told_to(new_server: NewServer):
    server = new_server("--tool_type", "trial", "--done_if_invalid", "True")

    body = server.post(["a", "b"], ["no action", "count"]).json()

    assert (body["dones"], body["valids"]) == ([True, False], [False, True])


@pytest.mark.feature("verl-tool", "finish drops the state of a trajectory")
def test_a_shell_keeps_its_folder_and_variables_until_it_is_finished(server: ServerProcess):
    server.observe("<bash>mkdir -p q; cd q; export WORD=kept</bash>")
    kept = server.observe("<bash>echo $WORD; pwd | tail -c 3</bash>")
    server.post(["t"], [""], finish=[True])
    fresh = server.observe("<bash>echo [$WORD]; ls</bash>")

    assert "user@bash-session:~/q$ echo $WORD; pwd | tail -c 3\nkept\n/q" in kept
    assert fresh == "\n<o>\nuser@bash-session:~$ echo [$WORD]; ls\n[]\n</o>\n"


@pytest.mark.feature("verl-tool", "the last step drops the state of its tool")
def test_the_last_step_drops_the_state(server: ServerProcess):
    server.observe("count")
    assert server.post(["t"], ["count"], is_last_step=[True]).json()["observations"] == ["count 2"]

    assert server.observe("count") == "count 1"


@pytest.mark.feature("verl-tool", "workers of a tool")
def test_four_calls_of_one_request_run_at_once(server: ServerProcess):
    # No call returns before all four are running.
    body = server.post(["a", "b", "c", "d"], ["meet 4"] * 4).json()

    assert body["observations"] == ["meet 1"] * 4


@pytest.mark.feature("verl-tool", "workers of a tool")
def test_one_worker_per_tool_executes_calls_one_by_one(new_server: NewServer):
    server = new_server("--tool_type", "trial", "--workers_per_tool", "1", "--request_timeout", "0.5")

    assert server.post(["a", "b"], ["meet 2"] * 2).status_code == 500


@pytest.mark.feature("verl-tool", "request timeout")
def test_a_slow_request_answers_as_verl_tools_server_does(new_server: NewServer):
    server = new_server("--tool_type", "trial", "--request_timeout", "0.2")

    response = server.post(["t"], ["hold"])

    assert response.status_code == 500
    assert response.json() == {"detail": "Processing failed: 500: Action processing failed: "}
    assert server.observe("count") == "count 1"


@pytest.mark.feature("verl-tool", "a tool that crashes")
def test_a_broken_tool_ends_only_its_own_trajectory(server: ServerProcess):
    body = server.post(["a", "b"], ["break", CALL]).json()

    assert body["observations"][0] == {
        "obs": "",
        "error": "Tool processing failed: 'broken'",
        "tool_type": "trial",
    }
    assert body["observations"][1] == "\n<result>\nhello 42\n</result>\n"
    assert (body["dones"], body["valids"]) == ([True, False], [False, True])


def test_a_failed_service_is_a_503_and_other_calls_are_not_repeated(server: ServerProcess, trial_folder: Path):
    fields = {"extra_fields": [{"call_id": "1"}, {"call_id": "1"}]}
    failed = server.post(["a", "b"], ["fail", "count"], **fields)
    (trial_folder / "go").touch()
    repeated = server.post(["a", "b"], ["fail", "count"], **fields)

    assert failed.status_code == 503
    assert failed.json()["cause"] == "tool"
    assert failed.headers["Retry-After"]
    assert repeated.json()["observations"] == ["fail 1", "count 1"]


def test_a_call_sent_twice_at_once_is_executed_once(server: ServerProcess, trial_folder: Path):
    with ThreadPoolExecutor() as pool:
        twice = [pool.submit(server.observe, "hold", call_id="1") for _ in range(2)]
        eventually(lambda: list(trial_folder.glob("held-*")))
        (trial_folder / "go").touch()

        assert [one.result() for one in twice] == ["hold 1", "hold 1"]
    assert server.metric('turnmill_tool_replays_total{tool="trial"}') == 1


def test_a_task_ended_by_a_limit_is_counted(new_server: NewServer):
    server = new_server("--tool_type", "python_code", "--set", "PYTHON_TIMEOUT_SECONDS=0.3")

    assert "Execution timed out after 0.3 seconds." in server.observe("<python>while True: pass</python>")
    kills = sum(server.metric(f'turnmill_sandbox_kills_total{{limit="{limit}"}}') for limit in ("time", "cpu"))
    assert kills == 1


@pytest.mark.feature("verl-tool", "a back-end in Ray")
@pytest.mark.parametrize("arguments", [(), ("--use_ray=True",), ("--sandbox", "process")])
def test_all_modes_of_the_server_give_the_same_results(new_server: NewServer, arguments: tuple[str, ...]):
    server = new_server("--tool_type", "python_code", *arguments)

    assert server.observe(CALL) == "\n<result>\nhello 42\n</result>\n"


@pytest.mark.feature("verl-tool", "a tool that is missing")
def test_a_missing_tool_prevents_the_server_from_starting(new_server: NewServer):
    server = new_server("--tool_type", "nosuch", ready=False)

    assert server.process.wait(60) == 2
    assert server.log.startswith("There is no tool 'nosuch'. Known: ")
    assert "\n" not in server.log.removesuffix("\n")


@pytest.mark.feature("verl-tool", "a tool that is missing")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_tells_at_its_start_which_tools_it_serves_and_why_others_are_left_out(
    new_server: NewServer, workers: str
):
    arguments = ("--tool_type", "trial,nosuch,python_code", "--allow-missing-tools", "--uvi_workers", workers)
    server = new_server(*arguments)

    assert " tools=trial,python_code,finish left_out=nosuch " in server.log
    assert "Tool left out tool=nosuch error=\"There is no tool 'nosuch'." in server.log


@pytest.mark.feature("verl-tool", "a tool that is missing")
def test_a_server_may_allow_missing_tools_and_then_finishes_every_trajectory(new_server: NewServer):
    server = new_server("--tool_type", "nosuch", "--allow-missing-tools")

    assert server.http.get("/health").json()["tools"] == ["finish"]
    body = server.post(["t"], ["whatever"]).json()
    assert (body["observations"], body["dones"], body["valids"]) == ([""], [True], [True])


def test_a_port_in_use_is_reported(new_server: NewServer):
    port = str(new_server("--tool_type", "trial").http.base_url.port)

    second = new_server("--tool_type", "trial", "--port", port, ready=False)

    assert second.process.wait(60) == 2
    assert f"--port {port} cannot be served" in second.log


@pytest.fixture(params=["256", "300"], ids=["one worker", "two workers"])
def any_server(new_server: NewServer, request: pytest.FixtureRequest) -> ServerProcess:
    return new_server("--tool_type", "trial,python_code", "--max_concurrent_requests", request.param)


@pytest.mark.feature("verl-tool", "graceful stop")
def test_a_stopping_server_answers_requests_in_progress(any_server: ServerProcess, trial_folder: Path):
    children = any_server.children()
    with ThreadPoolExecutor() as pool:
        call = pool.submit(any_server.observe, "hold")
        eventually(lambda: list(trial_folder.glob("held-*")))

        any_server.process.send_signal(signal.SIGTERM)
        eventually(lambda: refuses(any_server))
        (trial_folder / "go").touch()

        assert call.result() == "hold 1"
    assert any_server.process.wait(12) == 0
    eventually(lambda: not [pid for pid in children if alive(pid)], 12)


def test_a_server_stopped_during_its_start_leaves_no_processes(new_server: NewServer):
    server = new_server("--tool_type", "python_code", ready=False)
    children = eventually(server.children)

    server.process.send_signal(signal.SIGTERM)

    server.process.wait(12)
    eventually(lambda: not [pid for pid in children if alive(pid)], 12)


def refuses(server: ServerProcess) -> bool:
    """Return whether the server no longer accepts connections."""
    try:
        return httpx.get(str(server.http.base_url.join("/readyz")), timeout=5).status_code == 503
    except httpx.TransportError:
        return True


@pytest.mark.feature("verl-tool", "several back-ends")
def test_several_workers_share_trajectories_and_metrics(new_server: NewServer):
    server = new_server("--tool_type", "trial", "--uvi_workers", "3")

    # Every call opens a separate connection, which any worker may accept.
    observations = []
    for _ in range(30):
        response = server.http.post(
            "/get_observation",
            json={"trajectory_ids": ["t"], "actions": ["count"]},
            headers={"Connection": "close"},
        )
        observations += response.json()["observations"]

    assert observations == [f"count {n}" for n in range(1, 31)]
    assert server.metric('turnmill_tool_calls_total{outcome="done",tool="trial"}') == 30


def test_a_client_that_goes_in_the_middle_of_its_body_leaves_no_traceback(new_server: NewServer):
    server = new_server("--tool_type", "trial")
    address = ("127.0.0.1", server.http.base_url.port)
    head = b"POST /get_observation HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{"
    for _ in range(3):
        with socket.create_connection(address) as connection:
            connection.sendall(head)
            # The server has begun to read the body once it answers another request.
            assert server.http.get("/health").status_code == 200
    assert server.observe("count")

    assert "Traceback" not in server.log
