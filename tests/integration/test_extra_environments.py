"""Environments in separate interpreters, which `make extras` installs."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from turnmill import environments
from turnmill.core.errors import EnvironmentFailedError, SettingsError
from turnmill.environments.runtime.fork_server import ForkServer
from turnmill.environments.runtime.process import EnvironmentProcess
from turnmill.environments.runtime.worker import WorkerSettings

ROOT = Path(__file__).parents[2]

NewProcess = Callable[..., EnvironmentProcess]


@pytest.fixture
async def new_process() -> AsyncIterator[NewProcess]:
    made: list[EnvironmentProcess] = []
    servers: list[ForkServer] = []

    def make(extra: str, name: str, task: str | None = None, **options: object) -> EnvironmentProcess:
        python = ROOT / f".venv-{extra}" / "bin" / "python"
        if not python.exists():
            pytest.skip(f"{python} is not there: `make extras` installs it")
        servers.append(ForkServer(str(python)))
        settings = WorkerSettings(name=name, task=task, max_turns=20, options=options, python=str(python))
        made.append(EnvironmentProcess(settings, reset_timeout_seconds=300, fork_server=servers[-1]))
        return made[-1]

    yield make
    for process in made:
        await process.close()
    for server in servers:
        server.close()


@pytest.mark.feature("Verlog", "environments")
@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("nethack", None),
        ("nethack", "NetHackScore-v0"),
        ("minihack", "MiniHack-Corridor-R3-v0"),
        ("minihack", "MiniHack-MazeWalk-9x9-v0"),
    ],
)
async def test_a_seed_determines_the_episode_of_nethack_and_minihack(new_process, name, task):
    one, other = new_process("nethack", name, task), new_process("nethack", name, task)
    actions = [
        f"ACTION: {action}" for action in ("far east", "search", "south", "y", "nonsense", "kick", "north", "esc")
    ]

    openings = [await process.reset(seed=3) for process in (one, other)]
    results = [[await process.act(action) for action in actions] for process in (one, other)]

    assert openings[0] == openings[1]
    assert "@" in openings[0].observation
    assert results[0] == results[1]
    assert not results[0][4].valid
    assert (await one.reset(seed=4)).observation != openings[0].observation


async def test_a_seed_determines_the_level_of_minihack_with_a_list_of_seeds(new_process):
    process = new_process("nethack", "minihack", "MiniHack-Room-Random-5x5-v0", arguments={"seeds": list(range(1, 30))})

    openings = [await process.reset(seed=5) for _ in range(3)]

    assert openings[1:] == openings[:-1]
    assert await process.reset(seed=6) != openings[0]


@pytest.mark.parametrize("family", ["Boxoban-Hard", "MultiRoom-N2", "LavaCrossingS9N1", "SimpleCrossingS9N2"])
def test_a_task_that_minihack_cannot_play_is_refused(family):
    with pytest.raises(SettingsError, match=r"environment\.task: .* Choose another of its tasks"):
        environments.create("minihack", f"MiniHack-{family}-v0")


async def test_an_unknown_task_of_nethack_is_reported(new_process):
    with pytest.raises(EnvironmentFailedError, match="there is no task 'NetHackNone-v0'"):
        await new_process("nethack", "nethack", "NetHackNone-v0").reset(seed=0)


@pytest.mark.feature("Verlog", "environments")
@pytest.mark.parametrize("task", ["coin_collector", "treasure_hunter", "the_cooking_game"])
async def test_a_game_of_textworld_is_generated_and_played(new_process, task, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    process = new_process("textworld", "textworld", task, level=2, numGames=1)

    opening = await process.reset(seed=5)
    look_result = await process.act("ACTION: look")
    invalid = await process.act("ACTION: dance with the moon")

    assert opening.observation
    assert "-=" in look_result.observation
    assert (invalid.valid, invalid.done) == (True, False)
    assert await process.reset(seed=6) == opening
