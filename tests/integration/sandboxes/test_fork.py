import asyncio
import hashlib
import json
import logging
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest
import pytest_asyncio

from turnmill.core.errors import SandboxError
from turnmill.sandboxes import fork
from turnmill.sandboxes.base import MIB, Command, Function, Limits, Python, Task
from turnmill.sandboxes.fork import ForkSandbox, ProcessSandbox
from turnmill.tools.sandboxed.parts import pack

SECONDS = 60
SHELL = "turnmill.tools.sandboxed.shell"
SANDBOXES = {
    "namespaces": lambda: ForkSandbox(spares=1),
    "bare": lambda: ForkSandbox(spares=1, namespaces=False),
    "process": lambda: ProcessSandbox(spares=1),
}

SERVER = """
import asyncio, sys
from pathlib import Path
from turnmill.sandboxes.base import Command, Task
from turnmill.sandboxes.fork import ForkSandbox
asyncio.run(ForkSandbox(folder=Path(sys.argv[1])).run(Task(Command(("sh", "-c", f"sleep {sys.argv[2]}; true")))))
"""

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=SANDBOXES)
async def sandbox(request):
    made = SANDBOXES[request.param]()
    yield made
    await made.close()


def script(text: str, **options) -> Task:
    return Task(Python(text), **options)


def shell(text: str, **options) -> Task:
    return Task(Command(("sh", "-c", text)), **options)


def attended(line: str) -> Task:
    settings = {"seconds": 60, "cpu_seconds": 9, "characters": 999, "home_bytes": MIB, "home_files": 9, "join": False}
    parts = {"lines": json.dumps([line]).encode(), "state": b"", "limits": json.dumps(settings).encode()}
    return Task(Function(f"{SHELL}:run", pack(parts), attends=True), limits=Limits(seconds=60))


def zygote_pids(sandbox: ForkSandbox) -> list[int]:
    return [zygote._process.pid for zygote in sandbox._zygotes.values()]


async def test_a_script_runs_as_main_and_its_output_comes_back(sandbox):
    outcome = await sandbox.run(script("import sys\nprint(__name__, sys.argv)\nprint('oh', file=sys.stderr)"))

    assert outcome.stdout == b"__main__ ['main.py']\n"
    assert outcome.stderr == b"oh\n"
    assert (outcome.exit_code, outcome.limit, outcome.truncated) == (0, None, False)
    assert outcome.seconds > 0


async def test_a_copy_of_a_file_is_the_tasks_own(sandbox, tmp_path):
    original = tmp_path / "original"
    original.write_bytes(content := os.urandom(5 * MIB))

    read = await sandbox.run(
        script(
            "import hashlib\n"
            "with open('data', 'rb+') as f:\n    print(hashlib.sha256(f.read()).hexdigest())\n    f.write(b'x')",
            copies={"data": str(original)},
        )
    )

    assert read.stdout.decode().strip() == hashlib.sha256(content).hexdigest(), read.stderr
    assert original.read_bytes() == content


async def test_copies_and_files_lie_side_by_side(sandbox, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)

    outcome = await sandbox.run(
        shell("cat a b c", copies={name: str(tmp_path / name) for name in "ab"}, files={"c": b"c" * 2 * MIB})
    )

    assert outcome.stdout[:4] == b"abcc"


async def test_a_task_sees_of_a_copy_neither_where_it_comes_from_nor_an_open_descriptor(sandbox, tmp_path):
    (tmp_path / "original").write_text("x")

    outcome = await sandbox.run(
        script(
            "import os, stat\n"
            "def is_file(n):\n"
            "    try:\n        return stat.S_ISREG(os.fstat(n).st_mode)\n"
            "    except OSError:\n        return False\n"
            "print(list(filter(is_file, range(1000))))",
            copies={"data": str(tmp_path / "original")},
        )
    )

    assert outcome.stdout == b"[]\n"


@pytest.mark.parametrize(
    ("copies", "problem"),
    [
        ({"../data": "/etc/hostname"}, "without a slash"),
        ({"data": "/nowhere/to/be/found"}, "cannot be copied to a task: No such file"),
        ({str(number): "/etc/hostname" for number in range(17)}, "16 copies at most"),
    ],
)
async def test_what_cannot_be_copied_is_refused(sandbox, copies, problem):
    with pytest.raises(SandboxError, match=problem):
        await sandbox.run(script("pass", copies=copies))


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("pass", 0),
        ("import sys; sys.exit(7)", 7),
        ("raise SystemExit", 0),
        ("raise SystemExit('why')", 1),
        ("1/0", 1),
        ("def f(:", 1),
        ("import os; os._exit(9)", 9),
        ("'\\0'", 0),
        ("\0", 1),
        ("'\ud800'", 1),
    ],
)
async def test_a_script_ends_with_the_code_that_python_would_end_with(sandbox, source, code):
    outcome = await sandbox.run(script(source))

    assert outcome.exit_code == code


async def test_a_signal_ends_a_script_without_an_exit_code(sandbox):
    outcome = await sandbox.run(script("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))

    assert (outcome.exit_code, outcome.limit) == (None, None)


async def test_a_traceback_names_the_file_and_shows_the_line_and_nothing_of_ours(sandbox):
    task = Task(Python("def f():\n    return 1 / 0\n\nf()", filename="solution.py"))

    outcome = await sandbox.run(task)

    lines = outcome.stderr.decode().splitlines()
    assert lines[:3] == ["Traceback (most recent call last):", '  File "solution.py", line 4, in <module>', "    f()"]
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "turnmill" not in outcome.stderr.decode()


async def test_exit_handlers_and_threads_end_before_the_script_does(sandbox):
    text = (
        "import atexit, threading, time\n"
        "atexit.register(lambda: print('handler'))\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\nprint('main')"
    )

    outcome = await sandbox.run(script(text))

    assert outcome.stdout == b"main\nthread\nhandler\n"


async def test_stdin_files_environment_and_folder_reach_the_program(sandbox):
    task = shell(
        'cat; cat ../a.txt; echo "$WHO $HOME" | cut -d/ -f1; pwd | grep -o "[^/]*$"',
        stdin=b"in\n",
        files={"a.txt": b"file\n", "sub/b.txt": b""},
        environment={"WHO": "me"},
        folder="sub",
    )

    outcome = await sandbox.run(task)

    assert outcome.stdout == b"in\nfile\nme \nsub\n"


async def test_much_stdin_passes_through_while_much_output_comes_back(sandbox):
    data = os.urandom(MIB)

    outcome = await sandbox.run(shell("cat", stdin=data, limits=Limits(output_bytes=2 * MIB)))

    assert outcome.stdout == data


async def test_a_program_that_does_not_read_its_input_ends_all_the_same(sandbox):
    outcome = await sandbox.run(shell("exit 4", stdin=bytes(MIB)))

    assert outcome.exit_code == 4


async def test_merged_output_keeps_its_order(sandbox):
    text = "import sys\nfor n in range(5): print(n); print('e', n, file=sys.stderr)"

    outcome = await sandbox.run(script(text, merge_output=True))

    assert outcome.stdout == b"".join(b"%d\ne %d\n" % (n, n) for n in range(5))
    assert outcome.stderr == b""


async def test_regular_files_come_back_by_their_paths(sandbox):
    task = shell(
        "mkdir -p a/b; echo x > a/b/c; ln -s a l; mkfifo p; printf '\\377' > $(printf '\\377')", keep_files=True
    )

    outcome = await sandbox.run(task)

    assert outcome.files == {"a/b/c": b"x\n", "\udcff": b"\xff"}


async def test_files_do_not_come_back_if_nobody_asked_or_they_are_too_large(sandbox):
    small = await sandbox.run(shell("echo x > a"))
    large = await sandbox.run(
        shell("truncate -s 3M a; truncate -s 3M b", keep_files=True, limits=Limits(file_bytes=4 * MIB))
    )

    assert small.files is None
    assert large.files is None


async def test_a_missing_program_is_the_answer_that_a_shell_gives(sandbox):
    outcome = await sandbox.run(Task(Command(("no-such-program",))))

    assert outcome.exit_code == 127
    assert outcome.stderr == b"no-such-program: command not found\n"


async def test_a_pipe_that_nobody_reads_ends_a_program_quietly(sandbox):
    outcome = await sandbox.run(shell("yes | head -1"))

    assert (outcome.stdout, outcome.stderr) == (b"y\n", b"")


async def test_a_function_returns_bytes_and_its_output_comes_apart(sandbox):
    outcome = await sandbox.run(Task(Function("turnmill.sandboxes.self_test:probe", b"no json")))
    value = await sandbox.run(Task(Function("base64:b64encode", b"abc")))

    assert (outcome.value, outcome.exit_code) == (None, 1)
    assert b"JSONDecodeError" in outcome.stderr
    assert value.value == b"YWJj"


async def test_a_large_value_comes_back_whole(sandbox):
    argument = os.urandom(3 * MIB)

    outcome = await sandbox.run(Task(Function("builtins:bytes", argument)))

    assert outcome.value == argument


async def test_a_deadline_ends_a_task_and_keeps_what_it_printed(sandbox):
    task = script("print('begun')\nwhile True: pass", limits=Limits(seconds=0.3))

    outcome = await sandbox.run(task)

    assert (outcome.limit, outcome.exit_code, outcome.stdout) == ("time", None, b"begun\n")


async def test_cpu_time_is_bounded(sandbox):
    outcome = await sandbox.run(script("while True: pass", limits=Limits(seconds=SECONDS, cpu_seconds=1)))

    assert (outcome.limit, outcome.exit_code) == ("cpu", None)


async def test_cpu_time_of_all_processes_together_is_bounded(sandbox):
    text = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"

    outcome = await sandbox.run(script(text, limits=Limits(seconds=SECONDS, cpu_seconds=1)))

    assert outcome.limit == "cpu"


async def test_what_earlier_tasks_used_is_not_why_a_task_was_killed(sandbox):
    await sandbox.run(script("import time\nwhile time.process_time() < 1: pass"))

    killed = script("import os\nos.kill(os.getpid(), 9)", limits=Limits(seconds=SECONDS, cpu_seconds=1))
    outcomes = [await sandbox.run(killed) for _ in range(3)]

    assert [(outcome.limit, outcome.exit_code) for outcome in outcomes] == [(None, None)] * 3


async def test_memory_is_refused_beyond_its_bound(sandbox):
    text = "try: bytearray(300 << 20)\nexcept MemoryError: print('refused')"

    outcome = await sandbox.run(script(text, limits=Limits(memory_bytes=200 * MIB)))

    assert outcome.stdout == b"refused\n"


async def test_memory_of_all_processes_together_is_bounded(sandbox):
    text = "import os, time\nfor _ in range(3): os.fork()\nx = bytearray(b'x') * (60 << 20); time.sleep(60)"

    outcome = await sandbox.run(script(text, limits=Limits(seconds=SECONDS, memory_bytes=200 * MIB)))

    assert outcome.limit == "memory"


async def test_output_beyond_its_bound_is_dropped_and_the_run_goes_on(sandbox):
    text = "import sys; sys.stdout.write('x' * 300_000); sys.stderr.write('end')"

    outcome = await sandbox.run(script(text, limits=Limits(output_bytes=1000)))

    assert outcome.stdout == b"x" * 1000
    assert outcome.stderr == b"end"
    assert (outcome.truncated, outcome.exit_code, outcome.limit) == (True, 0, None)


async def test_a_flood_without_end_is_ended(sandbox):
    outcome = await sandbox.run(shell("yes", limits=Limits(seconds=SECONDS, output_bytes=1000)))

    assert (outcome.limit, outcome.truncated) == ("output", True)


async def test_files_together_are_bounded(sandbox):
    text = "import time\nfor n in range(40): open(f'{n}', 'wb').write(b'x' * (1 << 20))\ntime.sleep(60)"

    outcome = await sandbox.run(script(text, limits=Limits(seconds=SECONDS, file_bytes=8 * MIB)))

    assert outcome.limit == "files"


async def test_processes_are_bounded(sandbox):
    fork = "for _ in range(100):\n        if os.fork() == 0: time.sleep(60)"
    text = f"import os, time\ntry:\n    {fork}\nexcept OSError: exit(5)"

    outcome = await sandbox.run(script(text, limits=Limits(seconds=SECONDS, processes=20)))

    assert outcome.limit == "processes" or outcome.exit_code == 5


async def test_a_task_knows_nothing_of_the_one_before(sandbox):
    await sandbox.run(
        script("import builtins, random, sys; builtins.mark = 1; random.seed(1); sys.stdout.write('left')")
    )

    text = "import builtins, os, random; print(hasattr(builtins, 'mark'), os.listdir('.'), random.random())"
    outcomes = [await sandbox.run(script(text)) for _ in range(2)]

    assert [outcome.stdout.split()[:2] for outcome in outcomes] == [[b"False", b"[]"]] * 2
    assert outcomes[0].stdout != outcomes[1].stdout


async def test_numpy_draws_other_numbers_in_every_task(sandbox):
    pytest.importorskip("numpy")
    task = script("import numpy; print(numpy.random.rand(3))")

    outcomes = [await sandbox.run(task) for _ in range(2)]

    assert outcomes[0].exit_code == 0, outcomes[0].stderr
    assert outcomes[0].stdout != outcomes[1].stdout


async def test_an_event_loop_runs_inside(sandbox):
    outcome = await sandbox.run(script("import asyncio; asyncio.run(asyncio.sleep(0)); print('done')"))

    assert outcome.stdout == b"done\n", outcome.stderr


async def test_many_at_once_get_each_their_own_answer(sandbox):
    tasks = [script(f"import time; time.sleep(0.01); print({n})", files={"n": b"x"}) for n in range(40)]

    outcomes = await asyncio.gather(*map(sandbox.run, tasks))

    assert [outcome.stdout for outcome in outcomes] == [b"%d\n" % n for n in range(40)]


async def test_supervisors_beyond_the_spares_end_when_there_is_nothing_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(fork, "IDLE_SECONDS", 0.2)
    tmp_path.chmod(0o755)
    made = ForkSandbox(spares=1, folder=tmp_path)
    try:
        has_attendant = (await made.start()).holds_attendants
        await asyncio.gather(*(made.run(script("import time; time.sleep(0.5)")) for _ in range(4)))

        await until(lambda: len(list(tmp_path.glob("*/tasks/*"))) == 1 + has_attendant)

        assert (await made.run(script("print('well')"))).stdout == b"well\n"
    finally:
        await made.close()


async def test_after_so_many_tasks_another_supervisor_takes_over(tmp_path, monkeypatch):
    monkeypatch.setattr(fork, "RUNS_PER_SUPERVISOR", 2)
    tmp_path.chmod(0o755)
    made = ForkSandbox(spares=0, folder=tmp_path)
    task = script("import os; print(os.path.dirname(os.getcwd()))")
    try:
        places = [(await made.run(task)).stdout for _ in range(5)]
    finally:
        await made.close()

    assert max(map(places.count, places)) == 2


async def test_a_cancelled_run_ends_its_processes(sandbox):
    mark = f"{time.time_ns() % 10**9 + 10**9}"
    run = asyncio.create_task(sandbox.run(shell(f"sleep {mark} & sleep {mark}")))
    await until(lambda: is_running(mark))

    run.cancel()

    await until(lambda: not is_running(mark))


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "", "a\0b"])
async def test_a_path_out_of_the_workspace_is_refused(sandbox, path):
    with pytest.raises(SandboxError, match="not inside the workspace"):
        await sandbox.run(shell("true", files={path: b""}))


async def test_a_dead_zygote_is_replaced(sandbox):
    await sandbox.run(shell("true"))
    for pid in zygote_pids(sandbox):
        os.kill(pid, signal.SIGKILL)

    async def works() -> bool:
        try:
            return (await sandbox.run(shell("echo well"))).stdout == b"well\n"
        except SandboxError:
            return False

    await until(works)


async def test_a_closed_sandbox_runs_nothing_and_leaves_nothing(tmp_path):
    closed = ForkSandbox(folder=tmp_path, spares=1)
    tmp_path.chmod(0o755)
    running = asyncio.create_task(closed.run(script("import time; time.sleep(60)")))
    await until(lambda: list(tmp_path.glob("turnmill-sandbox-*/tasks/*")))
    pids = zygote_pids(closed)

    await closed.close()

    with pytest.raises(SandboxError):
        await running
    with pytest.raises(SandboxError, match="closed"):
        await closed.run(shell("true"))
    assert not list(tmp_path.iterdir())
    assert not any(map(is_alive, pids))


async def test_a_server_that_is_killed_leaves_neither_processes_nor_files(tmp_path):
    mark = f"{time.time_ns() % 10**9 + 10**9}"
    tmp_path.chmod(0o755)
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVER, str(tmp_path), mark),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    await until(lambda: is_running(mark))

    server.kill()
    await server.wait()

    await until(lambda: not is_running(mark))
    await until(lambda: not list(tmp_path.iterdir()))


async def test_tasks_in_flight_end_with_their_zygote(sandbox):
    mark = f"{time.time_ns() % 10**9 + 10**9}"
    run = asyncio.create_task(sandbox.run(shell(f"setsid sleep {mark} & sleep {mark}")))
    await until(lambda: is_running(mark))

    for pid in zygote_pids(sandbox):
        os.kill(pid, signal.SIGKILL)

    with pytest.raises(SandboxError):
        await run
    await until(lambda: not is_running(mark))


async def test_what_a_killed_supervisor_had_started_is_ended(sandbox):
    mark = f"{time.time_ns() % 10**9 + 10**9}"
    run = asyncio.create_task(sandbox.run(shell(f"setsid sleep {mark} & sleep {mark}")))
    await until(lambda: is_running(mark))

    for pid in supervisors_above(mark):
        os.kill(pid, signal.SIGKILL)

    with pytest.raises(SandboxError, match="ended before the task did"):
        await run
    await until(lambda: not is_running(mark))


@pytest.mark.skipif(os.geteuid() != 0, reason="attendants take root")
@pytest.mark.parametrize("end", ["cancelled", "supervisor killed"])
async def test_what_an_attendant_has_started_ends_with_its_task(tmp_path, end):
    tmp_path.chmod(0o755)
    made = ForkSandbox(preload=[SHELL], folder=tmp_path)
    mark = f"{time.time_ns() % 10**9 + 10**9}"
    try:
        run = asyncio.create_task(made.run(attended(f"setsid sleep {mark} & sleep {mark}")))
        await until(lambda: len(marked(mark)) == 2)

        if end == "cancelled":
            run.cancel()
        else:
            attendants = {parent(parent(pid)) for pid in marked(mark)} - {1}
            for supervisor in {parent(pid) for pid in attendants if user(pid) != os.geteuid()}:
                os.kill(supervisor, signal.SIGKILL)

        await until(lambda: not is_running(mark))
        with pytest.raises((asyncio.CancelledError, SandboxError)):
            await run
        assert b"well\n" in (await made.run(attended("echo well"))).stdout
    finally:
        await made.close()
    assert list(tmp_path.iterdir()) == []


async def test_the_weaker_sandbox_says_so_aloud(caplog):
    # verl, imported by other tests, lets the root logger pass errors alone.
    caplog.set_level(logging.WARNING, logger="turnmill")
    weak = ProcessSandbox(spares=1)
    try:
        await weak.start()
    finally:
        await weak.close()

    assert "reads and writes what the server may" in caplog.text


async def test_preloaded_modules_that_start_threads_are_refused(tmp_path, monkeypatch):
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    monkeypatch.syspath_prepend(tmp_path)
    refused = ForkSandbox(preload=["threaded"])
    try:
        with pytest.raises(SandboxError, match="start threads"):
            await refused.start()
    finally:
        await refused.close()


async def test_nothing_of_the_sandboxes_stays_in_the_temporary_folder(tmp_path):
    before = self_tests()
    tried = ForkSandbox(folder=tmp_path)
    await tried.start()
    await tried.close()

    assert self_tests() <= before
    assert not list(tmp_path.iterdir())


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def self_tests() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("turnmill-self-test-*"))


def marked(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def is_running(mark: str) -> bool:
    return bool(marked(mark))


def supervisors_above(mark: str) -> set[int]:
    """The parents of the parents: `sh` runs `sleep`, and a supervisor runs `sh`."""
    parents = {parent(pid) for pid in marked(mark)}
    grandparents = {parent(pid) for pid in parents if Path(f"/proc/{pid}/comm").read_text() == "sh\n"}
    return grandparents - {1}


def user(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


async def until(holds) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        value = holds()
        if await value if asyncio.iscoroutine(value) else value:
            return
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.02)
