"""`turnmill serve-environment`: OpenEnv's protocol, by real processes over HTTP and WebSockets."""

import json
import os
import random
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from support.environment_server import Client, EnvironmentServerProcess
from support.server_process import alive, descendants, eventually
from turnmill import environments
from turnmill.core.errors import EnvironmentFailedError
from turnmill.core.seeds import VALIDATION_SEEDS
from turnmill.environments.base import Environment

ROOT = Path(__file__).parents[2]
OPENENV = ROOT / ".venv-openenv" / "bin" / "python"
MAX_TURNS = 12
HOSTILE = "support.environments:Hostile"

NewServer = Callable[..., EnvironmentServerProcess]

# Environment, task, option, and texts that are among the actions of its episodes.
GAMES = {
    "babaisai": ("babaisai", None, None, ("fly",)),
    "babyai": ("babyai", "GoToObj", None, ("fly", "I see it. ACTION: go forward")),
    "blocksworld": ("blocksworld", None, "numBlocks=3", ("move 9 to 9",)),
    "crafter": ("crafter", None, "area=[16, 16]", ("fly",)),
    "maths": ("maths", None, "maxSteps=3", ("Action is needed: 17", "no number", "I take 4")),
    "sokoban": ("sokoban", None, "size=[5, 5]", ("1", "jump")),
    "tetris": ("tetris", None, None, ("up",)),
    "webshop": ("webshop", None, None, ("search[red shoes]", "click[buy now]")),
}

EVERY_TIME = ("babyai", "blocksworld", "maths")
"""Games that are played in the gate; others are played every night."""


@pytest.fixture(scope="module")
def game_server(tmp_path_factory) -> Iterator[Callable[[str], EnvironmentServerProcess]]:
    started: dict[str, EnvironmentServerProcess] = {}

    def start(game: str) -> EnvironmentServerProcess:
        name, task, option, _ = GAMES[game]
        if game not in started:
            arguments = [name, "--max-turns", str(MAX_TURNS)]
            arguments += ["--task", task] if task else []
            arguments += ["--set", option] if option else []
            log = tmp_path_factory.mktemp(game) / "log"
            started[game] = EnvironmentServerProcess(log, *arguments).wait_until_ready()
        return started[game]

    yield start
    for server in started.values():
        server.close()


@pytest.fixture
def new_server(tmp_path) -> Iterator[NewServer]:
    started: list[EnvironmentServerProcess] = []

    def start(*arguments: str) -> EnvironmentServerProcess:
        started.append(EnvironmentServerProcess(tmp_path / f"log{len(started)}", *arguments))
        return started[-1].wait_until_ready()

    yield start
    for server in started:
        server.close()


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode that was played on the environment itself: its actions, and text, reward and end after each."""

    seed: int
    actions: list[str]
    results: list[tuple[str, float | None, bool]]


def played_here(game: str, seed: int) -> Episode:
    """Play random actions, some of them invalid, on the environment in this process."""
    name, task, option, texts = GAMES[game]
    options = {option.partition("=")[0]: json.loads(option.partition("=")[2])} if option else {}
    environment = environments.create(name, task, MAX_TURNS, options)
    rng = random.Random(seed)
    episode = Episode(seed, [], [(environment.reset(seed), None, False)])
    while not episode.results[-1][2]:
        episode.actions.append(rng.choice([*environment.actions, *texts]))
        episode.results.append(_step(environment, episode))
    environment.close()
    return episode


def _step(environment: Environment, episode: Episode) -> tuple[str, float, bool]:
    action = environment.match_action(episode.actions[-1].rpartition("ACTION: ")[2])
    result = environment.step(environment.default_action if action is None else action)
    reward = result.reward if action is not None else -0.1
    return result.observation, reward, result.terminated or result.truncated or len(episode.actions) == MAX_TURNS


def episodes(game: str, *, count: int = 4) -> list[Episode]:
    return [
        played_here(game, seed) for seed in (*range(3, 3 + count // 2), *range(VALIDATION_SEEDS, VALIDATION_SEEDS + 2))
    ]


def replay(client: Client, episode: Episode) -> list[tuple[object, object, object]]:
    answers = [client.reset(seed=episode.seed), *map(client.step, episode.actions)]
    return [(answer["observation"]["text"], answer["reward"], answer["done"]) for answer in answers]


@pytest.mark.parametrize(
    "game",
    [pytest.param(game, marks=() if game in EVERY_TIME else (pytest.mark.slow, pytest.mark.nightly)) for game in GAMES],
)
def test_an_episode_is_the_same_as_in_the_environment_itself(game_server, game):
    with game_server(game).session() as client:
        for episode in episodes(game):
            assert replay(client, episode) == episode.results


@pytest.mark.skipif(not OPENENV.exists(), reason=f"{OPENENV} is not there: see docs/development.md")
@pytest.mark.parametrize("game", GAMES)
def test_openenvs_own_client_plays_the_same_episodes(game_server, game):
    expected = episodes(game)
    request = {
        "url": game_server(game).url,
        "episodes": [{"seed": each.seed, "actions": each.actions} for each in expected],
    }

    program = [str(OPENENV), str(ROOT / "tests" / "support" / "openenv_player.py")]
    done = subprocess.run(program, input=json.dumps(request), capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    assert [[tuple(result) for result in each] for each in json.loads(done.stdout)] == [
        each.results for each in expected
    ]


@pytest.mark.skipif(not OPENENV.exists(), reason=f"{OPENENV} is not there: see docs/development.md")
def test_openenvs_own_validation_passes(game_server):
    command = [str(OPENENV.with_name("openenv")), "validate", "--url", game_server("babyai").url]

    done = subprocess.run(command, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAIL" not in done.stdout


def test_the_environment_openenv_plays_what_the_server_serves(game_server):
    options = {"url": game_server("sokoban").url, "actionField": "action", "observationField": "text"}
    remote = environments.create("openenv", options=options)
    episode = played_here("sokoban", seed=11)

    results: list[tuple[str, float | None, bool]] = [(remote.reset(episode.seed), None, False)]
    for action in episode.actions:
        step = remote.step(action)
        results.append((step.observation, step.reward, step.terminated or step.truncated))
    remote.close()

    assert results == episode.results


def test_sessions_do_not_mix(game_server):
    server = game_server("babyai")
    expected = [played_here("babyai", seed) for seed in range(20, 26)]
    clients = [server.session() for _ in expected]

    seen: list[list[object]] = [[client.reset(seed=each.seed)] for client, each in zip(clients, expected, strict=True)]
    for turn in range(MAX_TURNS):
        playing = [number for number, each in enumerate(expected) if turn < len(each.actions)]
        for number in playing:
            clients[number].send("step", action=expected[number].actions[turn])
        for number in playing:
            seen[number].append(clients[number].receive()["data"])
    for client in clients:
        client.socket.close()

    texts = [[answer["observation"]["text"] for answer in each] for each in seen]
    assert texts == [[text for text, _, _ in each.results] for each in expected]


def test_what_an_agent_needs_to_know_is_in_each_observation(game_server):
    with game_server("babyai").session() as client:
        opening = client.reset(seed=7, episode_id="mine", unknown=[1])
        invalid = client.step("fly")
        state = client.state()

    observation = opening["observation"]
    assert "Your goal is to go to" in observation["instruction"]
    assert observation["actions"][:2] == ["turn left", "turn right"]
    assert opening["metadata"] == observation["metadata"] == {"seed": 7}
    assert (observation["action"], observation["action_is_valid"]) == (None, None)
    assert (invalid["observation"]["action"], invalid["observation"]["action_is_valid"]) == ("go forward", False)
    assert invalid["reward"] == -0.1
    assert state == {"episode_id": "mine", "step_count": 1, "seed": 7, "done": False}


def test_a_reset_without_a_seed_starts_an_episode_of_training(game_server):
    with game_server("babyai").session() as client:
        seeds = [client.reset()["metadata"]["seed"] for _ in range(3)]

    assert min(seeds) >= VALIDATION_SEEDS
    assert len(set(seeds)) == 3


def test_rewards_can_be_those_of_a_job(new_server):
    server = new_server(HOSTILE, "--binary-reward", "--invalid-penalty", "0.5")

    with server.session() as client:
        client.reset(seed=1)
        rewards = [client.step(action)["reward"] for action in ("look", "nonsense", "win")]

    assert rewards == [0.0, -0.5, 1.0]


def test_requests_outside_of_sessions_have_an_environment_of_their_own(game_server):
    server = game_server("sokoban")

    opening = server.post("/reset", '{"seed": 5}')
    step = server.post("/step", '{"action": {"action": "up"}}')

    assert opening.json()["observation"]["text"] == played_here("sokoban", 5).results[0][0]
    assert server.post("/reset", "").status_code == 200
    assert (step.status_code, server.get("/state").json()["episode_id"]) == (409, None)
    assert "/ws" in step.json()["detail"]
    assert server.post("/step", '{"action": {"move": "up"}}').status_code == 422
    assert server.post("/reset", '{"seed": -1}').json()["detail"][0]["loc"] == ["seed"]


def test_the_server_describes_itself(game_server):
    server = game_server("babyai")

    schema = server.get("/schema").json()

    assert server.get("/health").json() == {"status": "healthy"}
    assert server.get("/metadata").json()["name"] == "babyai GoToObj"
    assert schema["action"]["required"] == ["action"]
    assert {"text", "instruction", "actions", "reward", "done", "metadata"} <= schema["observation"][
        "properties"
    ].keys()
    assert schema["state"]["properties"].keys() == {"episode_id", "step_count", "seed", "done"}
    assert server.post("/mcp", "{}").json()["error"]["code"] == -32601
    assert {"/reset", "/step", "/state"} <= server.get("/openapi.json").json()["paths"].keys()
    assert server.get("/tasks").json() == {"detail": "GET /tasks: Not Found."}
    assert server.get("/reset").status_code == 405


@pytest.mark.parametrize(
    ("message", "code", "text"),
    [
        ("{", "INVALID_JSON", "Invalid JSON"),
        (b"\xff", "INVALID_JSON", "Invalid JSON"),
        ("[" * 100_000, "INVALID_JSON", "Invalid JSON"),
        ("[]", "UNKNOWN_TYPE", "reset, step, state, close"),
        ('{"type": "jump"}', "UNKNOWN_TYPE", "jump"),
        ('{"type": "step"}', "VALIDATION_ERROR", "data: Field required"),
        ('{"type": "step", "data": {"move": "up"}}', "VALIDATION_ERROR", r"data\.action: Field required"),
        ('{"type": "reset", "data": {"seed": -1}}', "VALIDATION_ERROR", "greater than or equal to 0"),
        ('{"type": "step", "data": {"action": "up"}}', "EXECUTION_ERROR", "reset it first"),
    ],
)
def test_a_wrong_message_is_an_error_and_the_session_goes_on(game_server, message, code, text):
    with game_server("sokoban").session() as client:
        client.socket.send(message)
        error = client.error()
        opening = client.reset(seed=1)

    assert error["code"] == code
    assert re.search(text, error["message"])
    assert opening["done"] is False


def test_a_step_after_the_end_is_an_error_and_keeps_the_state(game_server):
    episode = played_here("tetris", 3)
    with game_server("tetris").session() as client:
        replay(client, episode)
        client.send("step", action="left")
        error, state = client.error(), client.state()

    assert error["code"] == "EXECUTION_ERROR"
    assert (state["done"], state["step_count"]) == (True, len(episode.actions))


@pytest.mark.parametrize("misbehaviour", ["raises", "exits", "is_killed", "gives_nan", "hangs"])
def test_a_failure_of_an_environment_is_an_error_of_its_session_alone(new_server, misbehaviour):
    server = new_server(HOSTILE, "--set", f"onStep={misbehaviour}", "--step-timeout", "3")
    with server.session() as one, server.session() as other:
        one.reset(seed=1)
        other.reset(seed=2)

        one.send("step", action="misbehave")
        text = other.step("look")["observation"]["text"]
        error = one.error()

        assert text == "seed 2 step 1"
        assert error["code"] == "EXECUTION_ERROR"
        assert "environment" in str(error["message"])
        assert one.state()["episode_id"] is None
        assert one.reset(seed=3)["observation"]["text"] == "seed 3 step 0"
        assert other.step("look")["observation"]["text"] == "seed 2 step 2"


def test_a_session_too_many_is_refused(new_server):
    server = new_server("tetris", "--max-sessions", "1")
    with server.session() as client, server.session() as refused:
        client.reset(seed=1)

        error = refused.error()

        assert (error["code"], error["active_sessions"], error["max_sessions"]) == ("CAPACITY_REACHED", 1, 1)
        with pytest.raises(ConnectionClosed):
            refused.receive()
        assert server.post("/reset", "").status_code == 503
        assert client.step("left")["done"] is False
    for seed in range(5):
        # A session that is closed makes room for the next at once.
        with server.session() as client:
            assert client.reset(seed=seed)["done"] is False


def test_a_message_that_closes_the_session_makes_room_too(new_server):
    server = new_server("tetris", "--max-sessions", "1")
    with server.session() as client:
        client.reset(seed=1)
        client.socket.send('{"type": "close"}')
        with pytest.raises(ConnectionClosed):
            client.receive()
        with server.session() as next_client:
            assert next_client.reset(seed=1)["done"] is False


@pytest.mark.parametrize("action", [None, "misbehave"])
def test_a_killed_client_frees_its_session_and_its_process(new_server, action):
    server = new_server(HOSTILE, "--max-sessions", "1", "--set", "onStep=hangs", "--step-timeout", "3600")
    before = set(descendants(server.process.pid))
    program = (
        "from support.environment_server import Client\n"
        f"client = Client({server.url!r})\n"
        "client.reset(seed=1)\n"
        f"{action!r} and client.send('step', action={action!r})\n"
        "print('playing', flush=True)\n"
        "client.receive()\n"
    )
    variables = {"PYTHONPATH": os.pathsep.join(sys.path)}
    client = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=variables)
    assert client.stdout is not None
    assert client.stdout.readline() == b"playing\n"
    # Not counted: what starts a server may still be among those before.
    (environment,) = set(descendants(server.process.pid)) - before

    client.kill()
    client.communicate()

    eventually(lambda: environment not in descendants(server.process.pid))
    with server.session() as next_client:
        assert next_client.reset(seed=1)["done"] is False


def test_messages_may_be_sent_ahead(game_server):
    episode = played_here("tetris", 5)
    with game_server("tetris").session() as client:
        client.send("reset", seed=episode.seed)
        for action in episode.actions:
            client.send("step", action=action)
        answers = [client.receive()["data"] for _ in episode.results]

    assert [(each["observation"]["text"], each["reward"], each["done"]) for each in answers] == episode.results


def test_an_idle_session_ends(new_server):
    server = new_server("tetris", "--idle-seconds", "0.5")
    with server.session() as client:
        client.reset(seed=1)

        assert client.error() == {"message": "The session was idle for 0.5 s.", "code": "SESSION_ERROR"}
        with pytest.raises(ConnectionClosed):
            client.receive()


def test_a_session_outlives_the_time_limit_of_a_request(new_server):
    server = new_server("tetris", "--idle-seconds", "12")
    with server.session() as client:
        # Nothing comes for longer than a request's head may take; the session ends by its own limit.
        assert client.error()["message"] == "The session was idle for 12 s."


def test_a_server_that_is_stopped_lets_episodes_end(new_server):
    server = new_server("babyai", "--task", "GoToObj", "--max-turns", "3")
    with server.session() as playing, server.session() as waiting:
        playing.reset(seed=1)
        waiting.state()
        children = descendants(server.process.pid)

        server.terminate()

        assert waiting.error() == {"message": "The server is stopping.", "code": "SESSION_ERROR"}
        assert server.get("/health").status_code == 503
        with server.session() as late:
            assert late.error()["code"] == "SESSION_ERROR"
        assert [playing.step("turn left")["done"] for _ in range(3)] == [False, False, True]
        assert playing.error()["message"] == "The server is stopping."
        assert server.wait() == 0
        assert not any(map(alive, children))


@pytest.mark.parametrize("action", ["look", "misbehave"])
def test_an_episode_that_takes_too_long_ends_with_the_server(new_server, action):
    server = new_server(HOSTILE, "--set", "onStep=hangs", "--drain-seconds", "0.5")
    with server.session() as client:
        client.reset(seed=1)
        client.send("step", action=action)
        if action == "look":
            client.receive()
        children = descendants(server.process.pid)

        server.terminate()

        assert server.wait() == 0
        assert not any(map(alive, children))
        if action == "look":
            assert client.error()["code"] == "SESSION_ERROR"
        with pytest.raises(ConnectionClosed):
            client.receive()


def test_a_second_signal_ends_episodes_at_once(new_server):
    server = new_server("tetris", "--drain-seconds", "600")
    with server.session() as client:
        client.reset(seed=1)

        server.terminate()
        eventually(lambda: server.get("/health").status_code == 503)
        server.terminate()

        assert client.error()["code"] == "SESSION_ERROR"
        assert server.wait() == 0


def test_messages_and_bodies_have_a_largest_size(new_server):
    server = new_server("tetris", "--max-message-bytes", "2048")
    with server.session() as client:
        client.reset(seed=1)
        client.send("step", action="x" * 3000)

        with pytest.raises(ConnectionClosed) as closed:
            client.receive()

    assert closed.value.rcvd.code == 1009
    assert server.post("/reset", " " * 3000).status_code == 413


def test_foreign_names_and_foreign_sites_are_refused(game_server):
    server = game_server("tetris")
    address = urlsplit(server.url)

    with pytest.raises(InvalidStatus) as foreign_name:
        connect("ws://evil.example/ws", sock=socket.create_connection((address.hostname, address.port)), proxy=None)
    with pytest.raises(InvalidStatus) as foreign_site:
        server.session(Origin="https://evil.example")

    assert foreign_name.value.response.status_code == 421
    assert foreign_site.value.response.status_code == 403
    assert server.get("/metadata", Host="evil.example").status_code == 421


def test_a_token_is_asked_for(new_server, tmp_path):
    (tmp_path / "token").write_text("0123456789abcdef\n")
    server = new_server("tetris", "--token-file", str(tmp_path / "token"))

    with pytest.raises(InvalidStatus) as refused:
        server.session()
    with server.session(Authorization="Bearer 0123456789abcdef") as client:
        assert client.reset(seed=1)["done"] is False

    assert refused.value.response.status_code == 401
    assert (server.get("/schema").status_code, server.get("/health").status_code) == (401, 200)


def test_an_environment_may_have_an_interpreter_of_its_own(new_server):
    server = new_server("tetris", "--python", sys.executable)

    with server.session() as client:
        opening = client.reset(seed=4)

    assert opening["observation"]["text"] == played_here("tetris", 4).results[0][0]
    assert opening["observation"]["actions"] == []


def test_a_failure_reaches_the_environment_openenv_as_one(new_server):
    server = new_server(HOSTILE, "--set", "onStep=raises")
    options = {"url": server.url, "actionField": "action", "observationField": "text"}
    remote = environments.create("openenv", options=options)
    remote.reset(1)

    with pytest.raises(EnvironmentFailedError, match="it hurts"):
        remote.step("misbehave")
    remote.close()
