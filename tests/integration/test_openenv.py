"""The environment `openenv` against a server that speaks OpenEnv's protocol."""

import json
import threading
from collections.abc import Iterator

import pytest
from websockets.sync.server import ServerConnection, serve

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
    with serve(guess_a_number, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()


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


def test_a_missing_field_is_reported_with_the_existing_ones(url):
    with pytest.raises(SettingsError, match=r"no field 'words'\. It has: text, tries"):
        create(url, observationField="words").reset(seed=0)
