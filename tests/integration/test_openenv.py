"""The environment `openenv` against a server that speaks OpenEnv's protocol."""

import json
import threading
import time
from collections.abc import Iterator

import pytest
from websockets.sync.server import ServerConnection

from support.openenv_servers import error, observation, served
from turnmill import environments
from turnmill.core.errors import EnvironmentFailedError, SettingsError


def guess_a_number(connection: ServerConnection) -> None:
    """Serve a game in which each connection is a session."""
    secret = 0
    for raw in connection:
        message = json.loads(raw)
        data = message.get("data", {})
        if message["type"] == "reset":
            secret = data["seed"] % 10
            observed = {"observation": {"text": f"guess, {data.get('greeting', 'you')}", "tries": 0}, "reward": None}
        elif data.get("message") == "hang up":
            return
        elif "message" not in data:
            connection.send(json.dumps({"type": "error", "data": {"message": "message: field required"}}))
            continue
        else:
            right = data["message"] == str(secret)
            observed = {"observation": {"text": "yes" if right else "no"}, "reward": float(right), "done": right}
        connection.send(json.dumps({"type": "observation", "data": observed}))


@pytest.fixture
def url() -> Iterator[str]:
    with served(guess_a_number) as url:
        yield url


def create(url: str, **options: object) -> environments.Environment:
    fields = {"actionField": "message", "observationField": "text", **options}
    return environments.create("openenv", options={"url": url, **fields})


def test_an_episode_is_played_on_the_server(url):
    environment = create(url, reset={"greeting": "friend"})

    opening = environment.reset(seed=13)
    wrong, right = (environment.step(environment.match_action(answer)) for answer in (" 4 ", "3"))

    assert opening == "guess, friend"
    assert (wrong.observation, wrong.reward, wrong.terminated) == ("no", 0.0, False)
    assert (right.observation, right.reward, right.terminated) == ("yes", 1.0, True)
    assert environment.reset(seed=1) == "guess, friend"
    environment.close()


def test_two_environments_have_two_sessions(url):
    one, other = create(url), create(url)
    one.reset(seed=1)
    other.reset(seed=2)

    assert one.step("1").terminated
    assert other.step("2").terminated
    one.close()
    other.close()


def test_an_action_may_be_a_json_object(url):
    environment = environments.create("openenv", options={"url": url, "action": {"extra": 1}})
    environment.reset(seed=7)

    assert json.loads(environment.step('{"message": "7"}').observation) == {"text": "yes"}
    assert environment.match_action("7") is None
    assert environment.match_action("[" * 5000) is None
    with pytest.raises(EnvironmentFailedError, match="refused a step: message: field required"):
        environment.step("{}")
    environment.close()


def test_actions_can_be_limited_to_a_list(url):
    environment = create(url, actions=["1", "2"], defaultAction="2")

    assert (environment.actions, environment.default_action) == (("1", "2"), "2")
    assert environment.match_action("3") is None
    with pytest.raises(SettingsError, match=r"'9' is not an action\. Choose 1, 2"):
        create(url, actions=["1", "2"], defaultAction="9")


def test_an_invalid_answer_is_not_sent(url):
    environment = create(url)
    opening = environment.reset(seed=0)

    assert environment.step(environment.default_action).observation == opening
    environment.close()


def test_an_unreachable_server_and_a_lost_connection_are_reported(url):
    with pytest.raises(EnvironmentFailedError, match=r"no OpenEnv server answers at http://127\.0\.0\.1:9"):
        create("http://127.0.0.1:9").reset(seed=0)
    environment = create(url)
    environment.reset(seed=0)

    with pytest.raises(EnvironmentFailedError, match="connection to the OpenEnv server failed during a step"):
        environment.step("hang up")


def test_an_episode_after_a_lost_session_begins_in_another_one(url):
    environment = create(url)
    environment.reset(seed=3)
    with pytest.raises(EnvironmentFailedError):
        environment.step("hang up")

    environment.reset(seed=4)

    assert environment.step("4").terminated
    environment.close()


def test_a_session_that_ends_between_two_episodes_costs_none_of_them():
    sessions: list[ServerConnection] = []

    def one_episode(connection: ServerConnection) -> None:
        sessions.append(connection)
        for _ in range(2):
            connection.recv()
            connection.send(json.dumps(observation({"text": str(len(sessions))}, 1.0, True)))

    with served(one_episode) as url:
        environment = create(url)
        for number in ("1", "2", "3"):
            assert environment.reset(seed=0) == number
            assert environment.step("1").observation == number
        environment.close()


def test_a_late_answer_is_not_taken_for_that_to_the_next_request():
    asked = threading.Event()

    def slow(connection: ServerConnection) -> None:
        for raw in connection:
            message = json.loads(raw)
            if message["type"] == "step" and not asked.is_set():
                asked.set()
                connection.recv(timeout=30)
            connection.send(json.dumps(observation({"text": message["type"]}, 1.0)))

    with served(slow) as url:
        environment = create(url, messageTimeoutSeconds=0.5)
        environment.reset(seed=0)

        with pytest.raises(EnvironmentFailedError, match="failed during a step: timed out"):
            environment.step("1")
        assert environment.reset(seed=0) == "reset"
        assert environment.step("1").observation == "step"
        environment.close()


def full(connection: ServerConnection) -> None:
    """Refuse a session as a server does that has no more."""
    connection.send(json.dumps(error("Server at capacity: 1/1 sessions active", "CAPACITY_REACHED")))


def test_a_session_is_waited_for_while_all_are_taken():
    sessions: list[ServerConnection] = []

    def taken_twice(connection: ServerConnection) -> None:
        sessions.append(connection)
        (full if len(sessions) < 3 else guess_a_number)(connection)

    with served(taken_twice) as url:
        environment = create(url)

        assert environment.reset(seed=0) == "guess, you"
        assert len(sessions) == 3
        environment.close()


def test_a_server_that_stays_full_is_reported_with_the_way_out():
    with served(full) as url, pytest.raises(EnvironmentFailedError, match=r"CAPACITY_REACHED .*1/1 .* more sessions"):
        create(url, messageTimeoutSeconds=0.6).reset(seed=0)


def test_the_end_of_a_session_is_waited_for_so_that_it_is_free():
    ended = threading.Event()

    def noting_the_end(connection: ServerConnection) -> None:
        for raw in connection:
            if json.loads(raw)["type"] == "close":
                # As an environment that takes its time to release what it holds.
                time.sleep(0.2)
                ended.set()
                return
            connection.send(json.dumps(observation({"text": "?"})))

    with served(noting_the_end) as url:
        environment = create(url)
        environment.reset(seed=0)
        environment.close()

        assert ended.is_set()


def test_a_reward_that_is_no_number_fails_the_episode():
    def wrong(connection: ServerConnection) -> None:
        for _ in connection:
            connection.send(json.dumps(observation({"text": "?"}, "much")))  # type: ignore[arg-type]

    with served(wrong) as url, pytest.raises(EnvironmentFailedError, match="no finite number: 'much'"):
        create(url).reset(seed=0)


def test_listed_actions_are_sent_as_they_stand_in_the_job():
    def moves(connection: ServerConnection) -> None:
        for raw in connection:
            direction = json.loads(raw)["data"].get("direction", "?")
            connection.send(json.dumps(observation({"metadata": {"moved": direction}})))

    with served(moves) as url:
        options = {"url": url, "actionField": "direction", "observationField": "metadata.moved"}
        environment = environments.create("openenv", options={**options, "actions": ["Up", "DOWN"]})
        environment.reset(seed=0)

        matched = [environment.match_action(answer) for answer in ("up", " DOWN ", "left")]
        assert matched == ["up", "down", None]
        assert [environment.step(action).observation for action in matched if action] == ["Up", "DOWN"]
        assert environment.step(environment.default_action).observation == "Up"
        assert environment.instruction_prompt().endswith("The actions you can take are: Up, DOWN.")
        environment.close()


def test_a_missing_field_is_reported_with_the_existing_ones(url):
    with pytest.raises(SettingsError, match=r"no field 'words'\. It has: text, tries"):
        create(url, observationField="words").reset(seed=0)
