"""Functions whose module is imported once, and called in a fork for each trajectory."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from turnmill.core.errors import HarnessError
from turnmill.rollout.harness import preloaded
from turnmill.rollout.harness.preloaded import PreloadedFunction
from turnmill.rollout.harness.program import Ended

MODULE = """
import os, pathlib, random, subprocess, sys, tempfile, time

print("at the import")
IMPORTED, CALLS, TEMPORARY = os.getpid(), [], tempfile.gettempdir()
with open({log!r}, "a") as log:
    log.write(f"{{os.getpid()}}\\n")


def facts(task):
    CALLS.append(task)
    return {{
        "imported": IMPORTED, "pid": os.getpid(), "parent": os.getppid(), "leads": os.getsid(0) == os.getpid(),
        "calls": len(CALLS), "task": task, "folder": os.getcwd(), "home": os.environ["HOME"],
        "temporary": tempfile.gettempdir(), "key": os.environ["KEY"], "given": os.environ["GIVEN"],
        "draw": random.random(), "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    }}


def draw(task):
    import numpy
    return float(numpy.random.random())


def waits(task):
    child = subprocess.Popen(["sleep", "600"])
    pathlib.Path(task["file"] + ".part").write_text(f"{{os.getpid()}} {{child.pid}}")
    pathlib.Path(task["file"] + ".part").rename(task["file"])
    time.sleep(600)


def leaves(task):
    return float(subprocess.Popen(["sleep", "600"]).pid)


def raises(task):
    raise LookupError("not found")


def exits(task):
    sys.exit(task["code"])


def dies(task):
    os.kill(os.getpid(), 9)


async def later(task):
    return "text"
"""

Begin = Callable[..., PreloadedFunction]


def is_running(pid: int) -> bool:
    """Return whether a process is there, and no zombie."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
async def begin(tmp_path: Path) -> AsyncIterator[Begin]:
    functions = []

    def create(name: str, module: str = MODULE) -> PreloadedFunction:
        file = tmp_path / "agent.py"
        file.write_text(
            module.replace("{log!r}", repr(str(tmp_path / "imports"))).replace("{{", "{").replace("}}", "}")
        )
        functions.append(PreloadedFunction(f"{file}:{name}", sys.executable, {"GIVEN": "of the job"}))
        return functions[-1]

    yield create
    for function in functions:
        await function.close()


async def call(
    function: PreloadedFunction, folder: Path, task: Mapping[str, Any] | None = None, *, seconds: float = 60,
    stop: asyncio.Event | None = None,
) -> Ended:  # fmt: skip
    await asyncio.to_thread(folder.mkdir, exist_ok=True)
    return await function.run(
        task=task or {}, variables={"KEY": folder.name}, workspace=folder, timeout_seconds=seconds,
        stop=stop or asyncio.Event(),
    )  # fmt: skip


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not within a minute")


async def test_each_call_has_a_process_of_its_own_with_what_a_program_has(begin: Begin, tmp_path: Path):
    function = begin("facts")
    folders = [tmp_path / f"workspace{number}" for number in range(8)]

    calls = await asyncio.gather(*(call(function, folder, {"prompt": folder.name}) for folder in folders))

    facts: list[Any] = [ended.result for ended in calls]
    (parent,) = {each["imported"] for each in facts}
    assert (tmp_path / "imports").read_text().split() == [str(parent)]
    assert {each["parent"] for each in facts} == {parent}
    assert len({each["pid"] for each in facts}) == len(folders)
    # What one changes, no other sees.
    assert {each["calls"] for each in facts} == {1}
    assert len({each["draw"] for each in facts}) == len(folders)
    for each, folder in zip(facts, folders, strict=True):
        assert each["task"] == {"prompt": folder.name}
        assert each["folder"] == each["home"] == each["temporary"] == str(folder)
        assert (each["key"], each["given"], each["leads"]) == (folder.name, "of the job", True)
        # Nothing of the process that forked, nor of other calls.
        assert each["descriptors"] == [0, 1, 2]
    # What the import printed is not each call's.
    assert ["at the import" in ended.output for ended in calls] == [False] * len(folders)


async def test_forks_do_not_draw_the_same_numbers_of_numpy(begin: Begin, tmp_path: Path):
    function = begin("draw", MODULE + "import numpy.random\n")

    draws = [(await call(function, tmp_path / "workspace")).result["reward"] for _ in range(4)]

    assert len(set(draws)) == 4


@pytest.mark.parametrize(
    ("name", "task", "code", "words"),
    [
        ("raises", {}, 1, "LookupError: not found"),
        ("exits", {"code": 3}, 3, ""),
        ("exits", {"code": "well"}, 1, "well"),
        ("dies", {}, -9, ""),
        ("missing", {}, None, "has no attribute 'missing'"),
    ],
)
async def test_an_end_is_as_that_of_a_program(
    begin: Begin, tmp_path: Path, name: str, task: Any, code: Any, words: str
):
    function = begin(name)
    if code is None:
        with pytest.raises(HarnessError, match=words):
            await call(function, tmp_path / "workspace", task)
        return

    ended = await call(function, tmp_path / "workspace", task)

    assert (ended.how, ended.exit_code) == ("exited", code)
    assert words in ended.last_words


async def test_a_coroutine_is_awaited(begin: Begin, tmp_path: Path):
    assert (await call(begin("later"), tmp_path / "workspace")).result == {"answer": "text"}


async def test_what_a_call_leaves_behind_ends_with_it(begin: Begin, tmp_path: Path):
    ended = await call(begin("leaves"), tmp_path / "workspace")

    pid = int(str(ended.result["reward"]).partition(".")[0])
    await until(lambda: not is_running(pid))


@pytest.mark.parametrize("how", ["timeout", "stopped", "cancelled"])
async def test_a_call_is_ended_with_its_children(begin: Begin, tmp_path: Path, how: str):
    function, stop, file = begin("waits"), asyncio.Event(), tmp_path / "pids"
    # The import is not part of the time.
    await call(function, tmp_path / "first", {"file": str(tmp_path / "other")}, seconds=0.01)
    seconds = 2.0 if how == "timeout" else 600.0
    calling = asyncio.create_task(
        call(function, tmp_path / "workspace", {"file": str(file)}, seconds=seconds, stop=stop)
    )
    await until(file.exists)
    pids = [int(word) for word in file.read_text().split()]

    if how == "stopped":
        stop.set()
    if how == "cancelled":
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
    else:
        assert (await calling).how == how

    await until(lambda: not any(map(is_running, pids)))


async def test_a_process_that_dies_fails_its_calls_and_starts_again(begin: Begin, tmp_path: Path):
    function, file = begin("waits"), tmp_path / "pids"
    calling = asyncio.create_task(call(function, tmp_path / "workspace", {"file": str(file)}))
    await until(file.exists)
    pids = [int(word) for word in file.read_text().split()]

    os.kill(int((tmp_path / "imports").read_text()), signal.SIGKILL)

    with pytest.raises(HarnessError, match=r"the process that has imported .*agent\.py:waits died"):
        await calling
    await until(lambda: not any(map(is_running, pids)))
    assert (
        await call(function, tmp_path / "workspace", {"file": str(tmp_path / "other")}, seconds=0.5)
    ).how == "timeout"
    assert len((tmp_path / "imports").read_text().split()) == 2


async def test_a_call_that_is_cancelled_before_it_has_a_process_gets_none(begin: Begin, tmp_path: Path):
    function, file = begin("waits"), tmp_path / "pids"
    await call(function, tmp_path / "workspace", {"file": str(tmp_path / "other")}, seconds=0.01)
    pid = int((tmp_path / "imports").read_text())
    os.kill(pid, signal.SIGSTOP)
    calling = asyncio.create_task(call(function, tmp_path / "workspace", {"file": str(file)}))
    await asyncio.sleep(0.2)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling

    os.kill(pid, signal.SIGCONT)

    # Another call is played after both messages.
    await call(function, tmp_path / "workspace", {"file": str(tmp_path / "other")}, seconds=0.01)
    await until(lambda: not psutil.Process(pid).children())


async def test_calls_end_with_their_process_though_the_one_that_plays_trajectories_is_stopped(
    begin: Begin, tmp_path: Path
):
    begin("waits")
    file = tmp_path / "pids"
    program = f"""
import asyncio
from pathlib import Path
from turnmill.rollout.harness.preloaded import PreloadedFunction

function = PreloadedFunction("{tmp_path}/agent.py:waits", None, {{"KEY": "", "GIVEN": ""}})
asyncio.run(function.run(
    task={{"file": "{file}"}}, variables={{}}, workspace=Path("{tmp_path}"), timeout_seconds=600, stop=asyncio.Event()
))
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    try:
        await until(file.exists)
        process.send_signal(signal.SIGSTOP)
        pid, child = (int(word) for word in file.read_text().split())

        os.kill(int((tmp_path / "imports").read_text()), signal.SIGKILL)

        await until(lambda: not is_running(pid))
        process.send_signal(signal.SIGCONT)
        # It ends what the call has started.
        await until(lambda: not is_running(child))
    finally:
        process.kill()
        await process.wait()


async def test_closing_ends_the_process_and_its_calls(begin: Begin, tmp_path: Path):
    function, file = begin("waits"), tmp_path / "pids"
    calling = asyncio.create_task(call(function, tmp_path / "workspace", {"file": str(file)}))
    await until(file.exists)
    pids = [int(word) for word in (file.read_text() + " " + (tmp_path / "imports").read_text()).split()]

    await function.close()

    await until(lambda: not any(map(is_running, pids)))
    with pytest.raises(HarnessError):
        await calling


async def test_more_calls_than_the_socket_holds_are_all_answered(begin: Begin, tmp_path: Path):
    function = begin("facts")
    await call(function, tmp_path / "workspace")
    pid = int((tmp_path / "imports").read_text())
    os.kill(pid, signal.SIGSTOP)
    calls = [asyncio.create_task(call(function, tmp_path / "workspace", {"number": number})) for number in range(600)]
    # Until they are all sent, or wait for room.
    await asyncio.sleep(0.5)
    os.kill(pid, signal.SIGCONT)

    facts: list[Any] = [(await each).result for each in calls]

    assert [each["task"]["number"] for each in facts] == list(range(600))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("import threading; threading.Thread(target=time.sleep, args=[60], daemon=True, name='mine').start()", "mine"),
        ("raise RuntimeError('no key')", "no key"),
        ("sys.exit('bye')", "bye"),
        ("os.kill(os.getpid(), 9)", "exit code -9"),
    ],
)
async def test_a_module_that_cannot_be_forked_fails_the_call_with_the_reason(
    begin: Begin, tmp_path: Path, line: str, reason: str
):
    function = begin("facts", f"{MODULE}\n{line}\n")

    with pytest.raises(HarnessError, match=rf"(?s)agent\.py:facts cannot be imported: .*{reason}$"):
        await call(function, tmp_path / "workspace")


async def test_an_import_that_does_not_end_fails_the_call(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(preloaded, "LOAD_SECONDS", 1.0)
    function = begin("facts", f"{MODULE}\ntime.sleep(600)\n")

    with pytest.raises(HarnessError, match="cannot be imported: it is not within 1 s"):
        await call(function, tmp_path / "workspace")

    pid = int((tmp_path / "imports").read_text())
    await until(lambda: not is_running(pid))


async def test_an_interpreter_that_is_not_there_fails_the_call(tmp_path: Path):
    function = PreloadedFunction("json:loads", str(tmp_path / "python"), {})

    with pytest.raises(HarnessError, match=r"spec\.agent\.python: .* cannot be started"):
        await call(function, tmp_path / "workspace")
