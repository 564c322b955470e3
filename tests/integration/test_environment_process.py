import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psutil
import pytest

from support.server_process import alive
from turnmill.core.errors import EnvironmentFailedError
from turnmill.environments.runtime.fork_server import ForkServer
from turnmill.environments.runtime.process import REPLACEMENTS, EnvironmentProcess
from turnmill.environments.runtime.worker import WorkerSettings

MISBEHAVE, LOOK, WIN = "ACTION: misbehave", "ACTION: look", "ACTION: win"


class ProcessFactory:
    """Creates environment processes that share a fork server."""

    def __init__(self, fork_server: ForkServer) -> None:
        self.fork_server = fork_server
        self.created: list[EnvironmentProcess] = []

    def hostile(self, *, step_seconds: float = 60.0, reset_seconds: float = 60.0, **options: str) -> EnvironmentProcess:
        settings = WorkerSettings(name="support.environments:Hostile", max_turns=10, options=options)
        return self.create(settings, step_seconds=step_seconds, reset_seconds=reset_seconds)

    def create(
        self,
        settings: WorkerSettings,
        *,
        step_seconds: float = 60.0,
        reset_seconds: float = 60.0,
        max_reply_bytes: int = 16 * 2**20,
    ) -> EnvironmentProcess:
        process = EnvironmentProcess(
            settings,
            step_timeout_seconds=step_seconds,
            reset_timeout_seconds=reset_seconds,
            max_reply_bytes=max_reply_bytes,
            fork_server=self.fork_server,
        )
        self.created.append(process)
        return process


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
async def processes(fork_server: ForkServer) -> AsyncIterator[ProcessFactory]:
    factory = ProcessFactory(fork_server)
    yield factory
    for process in factory.created:
        await process.close()


def test_a_slow_fork_server_is_awaited():
    server = ForkServer()
    settings = WorkerSettings(name="support.environments:Hostile", max_turns=10)
    _, first = server.fork(settings)
    assert server.pid is not None
    slow = psutil.Process(server.pid)
    slow.suspend()
    # Longer than the time that a server has to stop, and with more requests than its socket buffers.
    waking = threading.Timer(6.0, slow.resume)
    waking.start()

    sockets = [server.fork(settings)[1] for _ in range(300)]

    assert server.pid == slow.pid
    waking.join()
    server.close()
    for each in (first, *sockets):
        each.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        # There is no event for the end of a process that is not a child.
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def wait_for_the_end_of(pid: int) -> None:
    await until(lambda: not alive(pid))


async def test_an_episode_is_played_in_another_process(processes):
    process = processes.hostile()

    opening = await process.reset(seed=4)
    result = await process.act(WIN)

    assert process.pid != os.getpid()
    assert (opening.observation, opening.compact_prompt) == ("seed 4 step 0", "goal: count")
    assert (result.action, result.valid, result.reward, result.done) == ("win", True, 1.0, True)
    assert result.observation == "seed 4 step 1"


@pytest.mark.parametrize(
    ("misbehaviour", "message"),
    [
        ("raises", "raised ValueError: it hurts"),
        ("exits", "exited with code 3"),
        ("is_killed", "was killed by SIGABRT"),
        ("sends_garbage", "not JSON"),
        ("sends_too_much", "reply of 4294967295 bytes"),
        ("sends_the_wrong_object", "sent an invalid reply"),
        ("gives_nan", "reward of nan"),
        ("leaves_a_child", "exited with code 0"),
    ],
)
async def test_a_failed_step_ends_the_episode_and_the_next_reset_starts_a_process(processes, misbehaviour, message):
    process = processes.hostile(on_step=misbehaviour)
    await process.reset(seed=0)
    first_pid = process.pid

    with pytest.raises(EnvironmentFailedError, match=message):
        await process.act(MISBEHAVE)
    opening = await process.reset(seed=1)

    assert opening.observation == "seed 1 step 0"
    assert process.pid != first_pid
    await wait_for_the_end_of(first_pid)


async def test_a_step_that_hangs_times_out_and_its_process_is_killed(processes):
    process = processes.hostile(on_step="hangs", step_seconds=0.2)
    await process.reset(seed=0)
    pid = process.pid

    with pytest.raises(EnvironmentFailedError, match=r"did not answer 'act' within 0.2 s"):
        await process.act(MISBEHAVE)

    await wait_for_the_end_of(pid)
    assert (await process.reset(seed=1)).observation == "seed 1 step 0"


async def test_a_reset_that_hangs_times_out(processes):
    await processes.hostile().reset(seed=0)
    process = processes.hostile(on_reset="hangs", reset_seconds=1.0)

    with pytest.raises(EnvironmentFailedError, match=r"did not (start|answer 'reset') within 1 s"):
        await process.reset(seed=0)


async def test_the_next_reset_is_prepared_during_the_episode(processes):
    process = processes.hostile()

    opening = await process.reset(seed=1, next_seed=2)

    assert opening.observation == "seed 1 step 0"
    assert (await process.reset(seed=2)).observation == "seed 2 step 0 prepared 2"


async def test_a_preparation_that_raises_has_no_effect(processes):
    process = processes.hostile(on_prepare="raises")
    await process.reset(seed=1, next_seed=2)

    assert (await process.act(LOOK)).observation == "seed 1 step 1"
    assert (await process.reset(seed=2)).observation == "seed 2 step 0"


async def test_a_preparation_that_hangs_fails_its_reset(processes):
    process = processes.hostile(on_prepare="hangs", reset_seconds=1.0)
    await processes.hostile().reset(seed=0)
    await process.reset(seed=1, next_seed=2)
    assert (await process.act(LOOK)).observation == "seed 1 step 1"

    with pytest.raises(EnvironmentFailedError, match="did not answer 'reset' within 1 s"):
        await process.reset(seed=2)

    assert (await process.reset(seed=2)).observation == "seed 2 step 0"


@pytest.mark.parametrize(("misbehaviour", "message"), [("raises", "it hurts"), ("exits", "exited with code 3")])
async def test_an_environment_that_cannot_be_created_fails_every_reset(processes, misbehaviour, message):
    process = processes.hostile(on_make=misbehaviour)

    for _ in range(2):
        with pytest.raises(EnvironmentFailedError, match=message):
            await process.reset(seed=0)


async def test_the_output_of_an_environment_is_discarded(processes, capfd):
    process = processes.hostile(on_step="prints", on_reset="prints")

    await process.reset(seed=0)
    await process.act(MISBEHAVE)

    assert capfd.readouterr().out == ""


async def test_child_processes_of_an_environment_die_with_it(processes):
    process = processes.hostile(on_step="leaves_a_child")
    await process.reset(seed=0)
    group = process.pid

    with pytest.raises(EnvironmentFailedError):
        await process.act(MISBEHAVE)

    await until(lambda: not any(group_of(pid) == group for pid in psutil.pids()))


def group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid) if alive(pid) else None
    except ProcessLookupError:
        return None


async def test_an_environment_that_exceeds_its_memory_limit_fails(processes):
    settings = WorkerSettings(
        name="support.environments:Hostile",
        options={"on_step": "takes_memory"},
        memory_limit_bytes=512 * 2**20,
    )
    process = processes.create(settings)
    await process.reset(seed=0)

    with pytest.raises(EnvironmentFailedError, match="MemoryError"):
        await process.act(MISBEHAVE)


async def test_an_environment_that_leaks_memory_fails_at_its_limit(processes):
    settings = WorkerSettings(
        name="support.environments:Hostile",
        max_turns=1000,
        options={"on_step": "leaks"},
        memory_limit_bytes=512 * 2**20,
    )
    process, bystander = processes.create(settings), processes.hostile()
    await process.reset(seed=0)
    await bystander.reset(seed=0)

    with pytest.raises(EnvironmentFailedError, match="MemoryError"):
        await act_repeatedly(process)

    assert (await process.reset(seed=1)).observation == "seed 1 step 0"
    assert (await bystander.act(LOOK)).observation == "seed 0 step 1"


async def act_repeatedly(process: EnvironmentProcess) -> None:
    for _ in range(20):
        await process.act(MISBEHAVE)


ACTIONS = {
    "babaisai": ["right", "up"],
    "babyai": ["turn left", "go forward", "pick up"],
    "bird": ["```sql\nSELECT name FROM author\n```"],
    "blocksworld": ["move 1 to 0", "move 2 to 1"],
    "crafter": ["move west", "do"],
    "maths": ["-17"],
    "sokoban": ["up", "left"],
    "tetris": ["left", "down"],
    "webshop": ["search[tent]", "click[back to search]"],
}
"""Some valid actions of each built-in environment."""


@pytest.mark.parametrize("name", ACTIONS)
async def test_a_killed_environment_of_any_kind_goes_on_in_another_process(processes, name):
    settings = WorkerSettings(name=name, max_turns=10)
    victim, bystander = processes.create(settings), processes.create(settings)
    assert await victim.reset(seed=2) == await bystander.reset(seed=2)

    for action in ACTIONS[name]:
        os.kill(victim.pid, signal.SIGKILL)
        result = await victim.act(f"ACTION: {action}")

        assert result.valid
        assert result == await bystander.act(f"ACTION: {action}")


@pytest.mark.parametrize("name", ACTIONS)
async def test_an_environment_of_any_kind_runs_within_its_memory_limit(processes, name):
    settings = WorkerSettings(name=name, max_turns=200, memory_limit_bytes=1024 * 2**20)
    process = processes.create(settings)

    for seed in range(3):
        await process.reset(seed, next_seed=seed + 1)
        for action in (ACTIONS[name] * 30)[:30]:
            if (await process.act(f"ACTION: {action}")).done:
                break


async def test_another_interpreter_runs_an_environment(processes, tmp_path):
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nTURNMILL_OTHER=1 exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    settings = WorkerSettings(name="tetris", python=str(program))
    server = ForkServer(str(program))
    try:
        process = EnvironmentProcess(settings, fork_server=server)
        elsewhere = await process.reset(seed=1)
        environment = psutil.Process(process.pid).environ()
        await process.check()
    finally:
        server.close()

    assert environment["TURNMILL_OTHER"] == "1"
    assert elsewhere == await processes.create(WorkerSettings(name="tetris")).reset(seed=1)


async def test_an_interpreter_without_turnmill_is_reported(tmp_path):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    server = ForkServer(str(program))
    try:
        with pytest.raises(
            EnvironmentFailedError, match=r"died without an error message|No environment process could be started"
        ):
            await EnvironmentProcess(WorkerSettings(name="tetris"), fork_server=server).check()
    finally:
        server.close()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
async def test_a_process_that_a_signal_ends_or_stops_is_replaced(processes, end):
    process = processes.hostile()
    await process.reset(seed=3)
    await process.act(LOOK)
    first_pid = process.pid
    os.kill(first_pid, end)

    assert (await process.act(LOOK)).observation == "seed 3 step 2"
    assert (await process.act(LOOK)).observation == "seed 3 step 3"
    assert process.pid != first_pid
    await wait_for_the_end_of(first_pid)


async def test_a_process_that_ended_before_its_episode_is_asked_is_replaced(processes):
    process = processes.hostile()
    await process.reset(seed=0)
    await process.act(LOOK)
    victim = psutil.Process(process.pid)
    victim.kill()
    await asyncio.to_thread(victim.wait, 30)

    assert (await process.act(WIN)).observation == "seed 0 step 2"


async def test_a_process_that_is_killed_between_two_episodes_is_replaced(processes):
    process = processes.hostile()
    await process.reset(seed=0)
    os.kill(process.pid, signal.SIGKILL)

    assert (await process.reset(seed=1)).observation == "seed 1 step 0"


async def test_a_process_that_is_stopped_before_its_environment_is_ready_is_replaced(
    processes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "stopping.py").write_text(
        "import os, pathlib, signal\n"
        "from support.environments import Hostile\n"
        "class Stopping(Hostile):\n"
        "    def __init__(self, *arguments):\n"
        "        super().__init__(*arguments)\n"
        "        try:\n"
        f"            pathlib.Path({str(tmp_path)!r}, 'stopped').touch(exist_ok=False)\n"
        "            os.kill(os.getpid(), signal.SIGSTOP)\n"
        "        except FileExistsError:\n"
        "            pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    assert (
        await processes.create(WorkerSettings(name="stopping:Stopping")).reset(seed=2)
    ).observation == "seed 2 step 0"


async def test_a_process_that_is_killed_while_it_replaces_another_is_replaced_as_well(processes, monkeypatch):
    process = processes.hostile()
    await process.reset(seed=3)
    await process.act(LOOK)
    killed, open_another = [], process._connection.open

    async def open_and_kill(seconds: float) -> None:
        await open_another(seconds)
        if len(killed) < REPLACEMENTS:
            killed.append(process.pid)
            os.kill(process.pid, signal.SIGKILL)

    monkeypatch.setattr(process._connection, "open", open_and_kill)
    os.kill(process.pid, signal.SIGKILL)
    killed.append(process.pid)

    assert (await process.act(LOOK)).observation == "seed 3 step 2"
    assert len(set(killed)) == REPLACEMENTS


async def test_an_action_that_kills_every_process_fails_the_episode(processes):
    process = processes.hostile(on_step="is_killed")
    await process.reset(seed=0)
    await process.act(LOOK)
    num_forks = processes.fork_server._last_key

    with pytest.raises(EnvironmentFailedError, match="was killed by SIGABRT"):
        await process.act(MISBEHAVE)

    assert processes.fork_server._last_key == num_forks + REPLACEMENTS


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> WorkerSettings:
    """An environment whose observations are not the same in another process."""
    (tmp_path / "forgetful.py").write_text(
        "import os\n"
        "from turnmill.environments.base import StepResult\n"
        "from support.environments import Hostile\n"
        "class Forgetful(Hostile):\n"
        "    def step(self, action):\n"
        "        return StepResult(f'process {os.getpid()}')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return WorkerSettings(name="forgetful:Forgetful")


async def test_an_episode_that_comes_out_otherwise_when_it_is_replayed_fails(processes, forgetful):
    process = processes.create(forgetful)
    await process.reset(seed=0)
    await process.act(LOOK)
    os.kill(process.pid, signal.SIGKILL)

    with pytest.raises(EnvironmentFailedError, match="came out otherwise when replayed"):
        await process.act(LOOK)
    with pytest.raises(EnvironmentFailedError, match="reset it first"):
        await process.act(LOOK)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
async def test_environments_go_on_after_their_fork_server_is_killed_or_stopped(processes, end):
    running = [processes.hostile() for _ in range(3)]
    for process in running:
        await process.reset(seed=0)
        await process.act(LOOK)
    os.kill(processes.fork_server.pid, end)
    for process in running:
        os.kill(process.pid, signal.SIGKILL)

    results = await asyncio.gather(*(process.act(LOOK) for process in running))

    assert [result.observation for result in results] == ["seed 0 step 2"] * 3


async def test_a_limit_does_not_count_time_in_which_this_process_stands_still(processes):
    process = processes.hostile(step_seconds=1.5)
    await process.reset(seed=0)
    asyncio.get_running_loop().call_later(0.01, lambda: time.sleep(2))
    os.kill(process.pid, signal.SIGKILL)

    assert (await process.act(LOOK)).observation == "seed 0 step 1"


async def test_a_cancelled_call_leaves_no_reply_for_the_next_call(processes):
    process = processes.hostile(on_step="hangs")
    await process.reset(seed=0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await process.act(MISBEHAVE)

    assert process.pid is None
    assert (await process.reset(seed=7)).observation == "seed 7 step 0"


async def test_acting_without_an_episode_fails_at_once(processes):
    with pytest.raises(EnvironmentFailedError, match="reset it first"):
        await processes.hostile().act(LOOK)


@pytest.fixture(scope="module")
def fork_server_of_other_hashes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A fork server in whose processes sets have another order."""
    program = tmp_path_factory.mktemp("interpreter") / "python"
    program.write_text(f'#!/bin/sh\nPYTHONHASHSEED=1 exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    server = ForkServer(str(program))
    yield server
    server.close()


@pytest.mark.parametrize("name", ACTIONS)
async def test_an_episode_of_any_kind_can_be_restored_where_sets_have_another_order(
    processes, fork_server_of_other_hashes, name
):
    settings = WorkerSettings(name=name, max_turns=30)
    original, continued = processes.create(settings), ProcessFactory(fork_server_of_other_hashes).create(settings)
    *responses, last = [f"ACTION: {action}" for action in (ACTIONS[name] * 4)[:4]]
    opening = await original.reset(seed=11)
    results = [await original.act(response) for response in responses]

    restored = await continued.restore(11, responses)

    assert restored.reset_result == opening
    assert list(restored.results) == results
    assert await continued.act(last) == await original.act(last)
    await continued.close()


@pytest.mark.parametrize("name", ["crafter", "sokoban", "tetris", "blocksworld", "maths", "bird"])
async def test_a_prepared_reset_equals_an_unprepared_one(processes, name):
    settings = WorkerSettings(name=name, max_turns=10)
    prepared, unprepared = processes.create(settings), processes.create(settings)
    await prepared.reset(seed=3, next_seed=4)
    await prepared.act("ACTION: up")

    assert await prepared.reset(seed=4, next_seed=5) == await unprepared.reset(seed=4)


async def test_an_episode_longer_than_the_reply_limit_is_restored_and_rendered(processes):
    settings = WorkerSettings(name="support.environments:Hostile", max_turns=100)
    process = processes.create(settings, max_reply_bytes=1000)

    restored = await process.restore(2, [LOOK] * 20)
    frames = await process.render_frames(2, [LOOK] * 20)

    assert restored.results[-1].observation == "seed 2 step 20"
    assert len(frames) == 21


async def test_a_failed_rendering_leaves_the_episode_in_progress_unchanged(processes):
    process = processes.hostile(on_step="raises")
    await process.reset(seed=0)

    with pytest.raises(EnvironmentFailedError, match="it hurts"):
        await process.render_frames(3, [MISBEHAVE])

    assert (await process.act(LOOK)).observation == "seed 0 step 1"


async def test_more_responses_than_an_episode_had_cannot_be_restored(processes):
    with pytest.raises(EnvironmentFailedError, match="no episode in progress"):
        await processes.hostile().restore(0, [WIN, LOOK])


@pytest.mark.feature("Verlog", "animations of episodes")
async def test_rendering_an_episode_leaves_the_one_in_progress_unchanged(processes):
    process = processes.hostile()
    await process.reset(seed=0)
    await process.act(LOOK)

    frames = await process.render_frames(3, [LOOK, LOOK])

    assert [int(frame.max()) for frame in frames] == [0, 10, 20]
    assert int((await process.render()).max()) == 10
    assert (await process.act(LOOK)).observation == "seed 0 step 2"


async def test_closing_ends_the_process(processes):
    process = processes.hostile()
    await process.reset(seed=0)
    pid = process.pid

    await process.close()

    await wait_for_the_end_of(pid)
    assert process.pid is None


async def test_environments_die_with_a_trainer_that_is_killed(tmp_path: Path):
    program = tmp_path / "trainer.py"
    program.write_text(
        "import asyncio, signal\n"
        "from turnmill.environments.runtime.fork_server import shared_fork_server\n"
        "from turnmill.environments.runtime.process import EnvironmentProcess, WorkerSettings\n"
        "async def main():\n"
        "    process = EnvironmentProcess(WorkerSettings(name='babyai'))\n"
        "    await process.reset(0)\n"
        "    print(process.pid, shared_fork_server().pid, flush=True)\n"
        "    signal.pause()\n"
        "asyncio.run(main())\n"
    )
    trainer = await asyncio.create_subprocess_exec(sys.executable, str(program), stdout=subprocess.PIPE)
    assert trainer.stdout
    async with asyncio.timeout(60):
        pids = [int(pid) for pid in (await trainer.stdout.readline()).split()]
    trainer.kill()
    await trainer.wait()

    assert len(pids) == 2
    for pid in pids:
        await wait_for_the_end_of(pid)


async def test_environments_ignore_an_interrupt_at_the_terminal(processes):
    process = processes.hostile()
    await process.reset(seed=0)
    for pid in (processes.fork_server.pid, process.pid):
        os.kill(pid, signal.SIGINT)

    assert (await process.act(LOOK)).observation == "seed 0 step 1"
    assert (await processes.hostile().reset(seed=2)).observation == "seed 2 step 0"
