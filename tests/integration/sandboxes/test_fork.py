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
from turnmill.sandboxes import fork_server_client
from turnmill.sandboxes.base import MIB, Command, Function, Limits, Python, SandboxTask
from turnmill.sandboxes.fork import ForkSandbox, ProcessSandbox
from turnmill.tools.sandboxed.packing import pack

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
from turnmill.sandboxes.base import Command, SandboxTask
from turnmill.sandboxes.fork import ForkSandbox
asyncio.run(ForkSandbox(folder=Path(sys.argv[1])).run(SandboxTask(Command(("sh", "-c", f"sleep {sys.argv[2]}; true")))))
"""

NOBODY_WAITS = "ctypes.CDLL(None).sigaction(signal.SIGCHLD, (ctypes.c_long * 20)(0, *[0] * 16, 2), None)"
"""Sets SA_NOCLDWAIT."""

BRIEF_CHILDREN = """
reading, writing = os.pipe()
os.write(writing, b"xxx")
while os.read(reading, 1):
    if os.fork() == 0:
        end = time.process_time() + 0.02
        while time.process_time() < end: pass
        os.write(writing, b"x"); os._exit(0)
"""

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=SANDBOXES)
async def sandbox(request):
    sandbox = SANDBOXES[request.param]()
    yield sandbox
    await sandbox.close()


def script(text: str, **options) -> SandboxTask:
    return SandboxTask(Python(text), **options)


def shell(text: str, **options) -> SandboxTask:
    return SandboxTask(Command(("sh", "-c", text)), **options)


def persistent(line: str) -> SandboxTask:
    settings = {"seconds": 60, "cpu_seconds": 9, "characters": 999, "home_bytes": MIB, "home_files": 9, "join": False}
    parts = {"lines": json.dumps([line]).encode(), "state": b"", "limits": json.dumps(settings).encode()}
    return SandboxTask(Function(f"{SHELL}:run", pack(parts), persistent=True), limits=Limits(seconds=60))


def fork_server_pids(sandbox: ForkSandbox) -> list[int]:
    return [server._process.pid for server in sandbox._servers.values() if server.is_alive]


async def test_a_script_runs_as_main_and_its_output_is_returned(sandbox):
    result = await sandbox.run(script("import sys\nprint(__name__, sys.argv)\nprint('oh', file=sys.stderr)"))

    assert result.stdout == b"__main__ ['main.py']\n"
    assert result.stderr == b"oh\n"
    assert (result.exit_code, result.limit, result.truncated) == (0, None, False)
    assert result.seconds > 0


async def test_a_task_writes_to_its_copy_and_not_to_the_original(sandbox, tmp_path):
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


async def test_copies_and_files_are_in_the_same_folder(sandbox, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)

    result = await sandbox.run(
        shell("cat a b c", copies={name: str(tmp_path / name) for name in "ab"}, files={"c": b"c" * 2 * MIB})
    )

    assert result.stdout[:4] == b"abcc"


async def test_a_task_has_no_open_descriptor_of_the_original_of_a_copy(sandbox, tmp_path):
    (tmp_path / "original").write_text("x")

    result = await sandbox.run(
        script(
            "import os, stat\n"
            "def is_file(n):\n"
            "    try:\n        return stat.S_ISREG(os.fstat(n).st_mode)\n"
            "    except OSError:\n        return False\n"
            "print(list(filter(is_file, range(1000))))",
            copies={"data": str(tmp_path / "original")},
        )
    )

    assert result.stdout == b"[]\n"


@pytest.mark.parametrize(
    ("copies", "problem"),
    [
        ({"../data": "/etc/hostname"}, "without a slash"),
        ({"data": "/nowhere/to/be/found"}, "cannot be copied to a task: No such file"),
        ({str(number): "/etc/hostname" for number in range(17)}, "16 copies at most"),
    ],
)
async def test_an_invalid_copy_is_refused(sandbox, copies, problem):
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
async def test_a_script_ends_with_the_exit_code_of_python(sandbox, source, code):
    result = await sandbox.run(script(source))

    assert result.exit_code == code


async def test_a_signal_ends_a_script_without_an_exit_code(sandbox):
    result = await sandbox.run(script("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))

    assert (result.exit_code, result.limit) == (None, None)


async def test_a_traceback_shows_file_and_line_and_no_frames_of_turnmill(sandbox):
    task = SandboxTask(Python("def f():\n    return 1 / 0\n\nf()", filename="solution.py"))

    result = await sandbox.run(task)

    lines = result.stderr.decode().splitlines()
    assert lines[:3] == ["Traceback (most recent call last):", '  File "solution.py", line 4, in <module>', "    f()"]
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "turnmill" not in result.stderr.decode()


async def test_exit_handlers_and_threads_end_before_the_script_does(sandbox):
    text = (
        "import atexit, threading, time\n"
        "atexit.register(lambda: print('handler'))\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\nprint('main')"
    )

    result = await sandbox.run(script(text))

    assert result.stdout == b"main\nthread\nhandler\n"


async def test_stdin_files_environment_and_folder_reach_the_program(sandbox):
    task = shell(
        'cat; cat ../a.txt; echo "$WHO $HOME" | cut -d/ -f1; pwd | grep -o "[^/]*$"',
        stdin=b"in\n",
        files={"a.txt": b"file\n", "sub/b.txt": b""},
        environment={"WHO": "me"},
        folder="sub",
    )

    result = await sandbox.run(task)

    assert result.stdout == b"in\nfile\nme \nsub\n"


async def test_large_stdin_and_large_output_do_not_block_each_other(sandbox):
    data = os.urandom(MIB)

    result = await sandbox.run(shell("cat", stdin=data, limits=Limits(output_bytes=2 * MIB)))

    assert result.stdout == data


async def test_a_program_may_end_without_reading_stdin(sandbox):
    result = await sandbox.run(shell("exit 4", stdin=bytes(MIB)))

    assert result.exit_code == 4


async def test_merged_output_keeps_its_order(sandbox):
    text = "import sys\nfor n in range(5): print(n); print('e', n, file=sys.stderr)"

    result = await sandbox.run(script(text, merge_output=True))

    assert result.stdout == b"".join(b"%d\ne %d\n" % (n, n) for n in range(5))
    assert result.stderr == b""


async def test_regular_files_are_returned_by_path(sandbox):
    task = shell(
        "mkdir -p a/b; echo x > a/b/c; ln -s a l; mkfifo p; printf '\\377' > $(printf '\\377')", keep_files=True
    )

    result = await sandbox.run(task)

    assert result.files == {"a/b/c": b"x\n", "\udcff": b"\xff"}


async def test_files_are_returned_only_on_request_and_within_the_limit(sandbox):
    small = await sandbox.run(shell("echo x > a"))
    large = await sandbox.run(
        shell("truncate -s 3M a; truncate -s 3M b", keep_files=True, limits=Limits(file_bytes=4 * MIB))
    )

    assert small.files is None
    assert large.files is None


async def test_a_missing_program_ends_with_127_as_in_a_shell(sandbox):
    result = await sandbox.run(SandboxTask(Command(("no-such-program",))))

    assert result.exit_code == 127
    assert result.stderr == b"no-such-program: command not found\n"


async def test_a_broken_pipe_ends_a_program_silently(sandbox):
    result = await sandbox.run(shell("yes | head -1"))

    assert (result.stdout, result.stderr) == (b"y\n", b"")


async def test_a_function_returns_bytes_separately_from_its_output(sandbox):
    result = await sandbox.run(SandboxTask(Function("turnmill.sandboxes.self_test:probe", b"no json")))
    value = await sandbox.run(SandboxTask(Function("base64:b64encode", b"abc")))

    assert (result.value, result.exit_code) == (None, 1)
    assert b"JSONDecodeError" in result.stderr
    assert value.value == b"YWJj"


async def test_a_large_value_is_returned_whole(sandbox):
    argument = os.urandom(3 * MIB)

    result = await sandbox.run(SandboxTask(Function("builtins:bytes", argument)))

    assert result.value == argument


async def test_a_deadline_ends_a_task_and_keeps_its_output(sandbox):
    task = script("print('begun')\nwhile True: pass", limits=Limits(seconds=0.3))

    result = await sandbox.run(task)

    assert (result.limit, result.exit_code, result.stdout) == ("time", None, b"begun\n")


async def test_cpu_time_is_bounded(sandbox):
    result = await sandbox.run(script("while True: pass", limits=Limits(seconds=SECONDS, cpu_seconds=1)))

    assert (result.limit, result.exit_code) == ("cpu", None)


async def test_cpu_time_of_all_processes_together_is_bounded(sandbox):
    text = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"

    result = await sandbox.run(script(text, limits=Limits(seconds=SECONDS, cpu_seconds=1)))

    assert result.limit == "cpu"


async def test_cpu_time_of_earlier_tasks_does_not_count(sandbox):
    await sandbox.run(script("import time\nwhile time.process_time() < 1: pass"))

    killed = script("import os\nos.kill(os.getpid(), 9)", limits=Limits(seconds=SECONDS, cpu_seconds=1))
    results = [await sandbox.run(killed) for _ in range(3)]

    assert [(result.limit, result.exit_code) for result in results] == [(None, None)] * 3


async def test_memory_beyond_the_limit_is_refused(sandbox):
    text = "try: bytearray(300 << 20)\nexcept MemoryError: print('refused')"

    result = await sandbox.run(script(text, limits=Limits(memory_bytes=200 * MIB)))

    assert result.stdout == b"refused\n"


async def test_memory_of_all_processes_together_is_bounded(sandbox):
    text = "import os, time\nfor _ in range(3): os.fork()\nx = bytearray(b'x') * (60 << 20); time.sleep(60)"

    result = await sandbox.run(script(text, limits=Limits(seconds=SECONDS, memory_bytes=200 * MIB)))

    assert result.limit == "memory"


async def test_memory_of_a_process_whose_first_thread_has_ended_is_bounded(sandbox):
    text = (
        "import ctypes, os, threading, time\n"
        "def work(): x = bytearray(b'x') * (90 << 20); time.sleep(60)\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        "        threading.Thread(target=work).start()\n"
        "        ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)\n"
        "time.sleep(60)"
    )

    result = await sandbox.run(script(text, limits=Limits(seconds=SECONDS, memory_bytes=200 * MIB)))

    assert result.limit == "memory"


@pytest.mark.parametrize("ignores", ["signal.signal(signal.SIGCHLD, signal.SIG_IGN)", NOBODY_WAITS])
async def test_cpu_time_of_children_that_nobody_waits_for_is_bounded(sandbox, ignores):
    limits = Limits(seconds=SECONDS, cpu_seconds=1)

    result = await sandbox.run(script(f"import ctypes, os, signal, time\n{ignores}\n{BRIEF_CHILDREN}", limits=limits))

    assert result.limit == "cpu"


async def test_children_that_are_waited_for_cost_what_they_use(sandbox):
    text = "import os, time\nfor _ in range(60):\n    if os.fork() == 0: time.sleep(0.02); os._exit(0)\n    os.wait()"

    result = await sandbox.run(script(text, limits=Limits(seconds=SECONDS, cpu_seconds=1)))

    assert (result.limit, result.exit_code) == (None, 0)


async def test_files_that_are_deleted_but_mapped_count(sandbox):
    text = (
        "import ctypes, os, time\nlibc = ctypes.CDLL(None)\n"
        "libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]\n"
        "for _ in range(20):\n"
        "    f = os.open('f', os.O_RDWR | os.O_CREAT); os.write(f, b'x' * (1 << 20))\n"
        "    libc.mmap(None, 4096, 1, 2, f, 0); os.unlink('f'); os.close(f)\n"
        "time.sleep(60)"
    )

    result = await sandbox.run(script(text, limits=Limits(seconds=SECONDS, file_bytes=8 * MIB)))

    assert result.limit == "files"


async def test_the_number_of_threads_is_bounded(sandbox):
    text = (
        "import threading, time\n"
        "try:\n    for _ in range(99): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "except RuntimeError: exit(5)\n"
        "time.sleep(60)"
    )

    result = await sandbox.run(script(text, limits=Limits(seconds=SECONDS, processes=20)))

    assert result.limit == "processes" or result.exit_code == 5


async def test_programs_copy_files_and_share_memory_by_files(sandbox):
    text = (
        "import mmap, os, shutil\n"
        "open('a', 'wb').write(b'x' * 99999); shutil.copyfile('a', 'b')\n"
        "f = open('m', 'w+b'); f.truncate(4096); value = mmap.mmap(f.fileno(), 4096)\n"
        "if os.fork() == 0: value[3] = 7; os._exit(0)\n"
        "os.wait(); print(value[3], os.path.getsize('b'))"
    )

    result = await sandbox.run(script(text))

    assert result.stdout == b"7 99999\n", result.stderr


async def test_output_beyond_the_limit_is_dropped_and_the_task_continues(sandbox):
    text = "import sys; sys.stdout.write('x' * 300_000); sys.stderr.write('end')"

    result = await sandbox.run(script(text, limits=Limits(output_bytes=1000)))

    assert result.stdout == b"x" * 1000
    assert result.stderr == b"end"
    assert (result.truncated, result.exit_code, result.limit) == (True, 0, None)


async def test_endless_output_ends_a_task(sandbox):
    result = await sandbox.run(shell("yes", limits=Limits(seconds=SECONDS, output_bytes=1000)))

    assert (result.limit, result.truncated) == ("output", True)


async def test_the_total_size_of_files_is_bounded(sandbox):
    text = "import time\nfor n in range(40): open(f'{n}', 'wb').write(b'x' * (1 << 20))\ntime.sleep(60)"

    result = await sandbox.run(script(text, limits=Limits(seconds=SECONDS, file_bytes=8 * MIB)))

    assert result.limit == "files"


async def test_the_number_of_processes_is_bounded(sandbox):
    fork = "for _ in range(100):\n        if os.fork() == 0: time.sleep(60)"
    text = f"import os, time\ntry:\n    {fork}\nexcept OSError: exit(5)"

    result = await sandbox.run(script(text, limits=Limits(seconds=SECONDS, processes=20)))

    assert result.limit == "processes" or result.exit_code == 5


async def test_a_task_has_no_state_of_earlier_tasks(sandbox):
    await sandbox.run(
        script("import builtins, random, sys; builtins.mark = 1; random.seed(1); sys.stdout.write('left')")
    )

    text = "import builtins, os, random; print(hasattr(builtins, 'mark'), os.listdir('.'), random.random())"
    results = [await sandbox.run(script(text)) for _ in range(2)]

    assert [result.stdout.split()[:2] for result in results] == [[b"False", b"[]"]] * 2
    assert results[0].stdout != results[1].stdout


async def test_numpy_draws_different_numbers_in_every_task(sandbox):
    pytest.importorskip("numpy")
    task = script("import numpy; print(numpy.random.rand(3))")

    results = [await sandbox.run(task) for _ in range(2)]

    assert results[0].exit_code == 0, results[0].stderr
    assert results[0].stdout != results[1].stdout


async def test_an_event_loop_runs_in_a_task(sandbox):
    result = await sandbox.run(script("import asyncio; asyncio.run(asyncio.sleep(0)); print('done')"))

    assert result.stdout == b"done\n", result.stderr


async def test_concurrent_tasks_each_get_their_own_result(sandbox):
    tasks = [script(f"import time; time.sleep(0.01); print({n})", files={"n": b"x"}) for n in range(40)]

    results = await asyncio.gather(*map(sandbox.run, tasks))

    assert [result.stdout for result in results] == [b"%d\n" % n for n in range(40)]


async def test_idle_supervisors_beyond_the_spares_end(tmp_path, monkeypatch):
    monkeypatch.setattr(fork_server_client, "IDLE_SECONDS", 0.2)
    tmp_path.chmod(0o755)
    sandbox = ForkSandbox(spares=1, folder=tmp_path)
    try:
        has_persistent_worker = (await sandbox.start()).allows_persistent_workers
        await asyncio.gather(*(sandbox.run(script("import time; time.sleep(0.5)")) for _ in range(4)))

        await until(lambda: len(list(tmp_path.glob("*/tasks/*"))) == 1 + has_persistent_worker)

        assert (await sandbox.run(script("print('well')"))).stdout == b"well\n"
    finally:
        await sandbox.close()


async def test_a_supervisor_is_replaced_after_its_maximum_number_of_tasks(tmp_path, monkeypatch):
    monkeypatch.setattr(fork_server_client, "TASKS_PER_SUPERVISOR", 2)
    tmp_path.chmod(0o755)
    sandbox = ForkSandbox(spares=0, folder=tmp_path)
    task = script("import os; print(os.path.dirname(os.getcwd()))")
    try:
        workspaces = [(await sandbox.run(task)).stdout for _ in range(5)]
    finally:
        await sandbox.close()

    assert max(map(workspaces.count, workspaces)) == 2


async def test_a_cancelled_run_ends_its_processes(sandbox):
    mark = f"{time.time_ns() % 10**9 + 10**9}"
    run = asyncio.create_task(sandbox.run(shell(f"sleep {mark} & sleep {mark}")))
    await until_started(run, mark)

    run.cancel()

    await until(lambda: not is_running(mark))


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "", "a\0b"])
async def test_a_path_outside_of_the_workspace_is_refused(sandbox, path):
    with pytest.raises(SandboxError, match="not inside the workspace"):
        await sandbox.run(shell("true", files={path: b""}))


async def test_a_dead_fork_server_is_replaced(sandbox):
    await sandbox.run(shell("true"))
    dying = list(sandbox._servers.values())
    for pid in fork_server_pids(sandbox):
        os.kill(pid, signal.SIGKILL)
    # Until then it may run a task, or take one with it.
    await until(lambda: not any(server.is_alive for server in dying))

    async def works() -> bool:
        try:
            return (await sandbox.run(shell("echo well"))).stdout == b"well\n"
        except SandboxError:
            return False

    await until(works)


async def test_a_closed_sandbox_ends_its_tasks_and_deletes_its_files(tmp_path):
    closed = ForkSandbox(folder=tmp_path, spares=1)
    tmp_path.chmod(0o755)
    running = asyncio.create_task(closed.run(script("import time; time.sleep(60)")))
    await until(lambda: list(tmp_path.glob("turnmill-sandbox-*/tasks/*")))
    pids = fork_server_pids(closed)

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


async def test_running_tasks_end_with_their_fork_server(sandbox):
    mark = f"{time.time_ns() % 10**9 + 10**9}"
    run = asyncio.create_task(sandbox.run(shell(f"setsid sleep {mark} & sleep {mark}")))
    await until_started(run, mark)

    for pid in fork_server_pids(sandbox):
        os.kill(pid, signal.SIGKILL)

    with pytest.raises(SandboxError):
        await run
    await until(lambda: not is_running(mark))


async def test_processes_of_a_killed_supervisor_are_ended(sandbox):
    mark = f"{time.time_ns() % 10**9 + 10**9}"
    run = asyncio.create_task(sandbox.run(shell(f"setsid sleep {mark} & sleep {mark}")))
    await until_started(run, mark)

    for pid in supervisors_above(mark):
        os.kill(pid, signal.SIGKILL)

    with pytest.raises(SandboxError, match="ended before the task did"):
        await run
    await until(lambda: not is_running(mark))


@pytest.mark.skipif(os.geteuid() != 0, reason="persistent workers require root")
@pytest.mark.parametrize("end", ["cancelled", "supervisor killed"])
async def test_processes_of_a_persistent_worker_end_with_their_task(tmp_path, end):
    tmp_path.chmod(0o755)
    sandbox = ForkSandbox(preload=[SHELL], folder=tmp_path)
    mark = f"{time.time_ns() % 10**9 + 10**9}"
    try:
        run = asyncio.create_task(sandbox.run(persistent(f"setsid sleep {mark} & sleep {mark}")))
        await until(lambda: len(marked(mark)) == 2)

        if end == "cancelled":
            run.cancel()
        else:
            workers = {parent(parent(pid)) for pid in marked(mark)} - {1}
            for supervisor in {parent(pid) for pid in workers if user(pid) != os.geteuid()}:
                os.kill(supervisor, signal.SIGKILL)

        await until(lambda: not is_running(mark))
        with pytest.raises((asyncio.CancelledError, SandboxError)):
            await run
        assert b"well\n" in (await sandbox.run(persistent("echo well"))).stdout
    finally:
        await sandbox.close()
    assert list(tmp_path.iterdir()) == []


async def test_the_weaker_sandbox_logs_a_warning(caplog):
    # verl, which other tests import, sets the level of the root logger to errors.
    caplog.set_level(logging.WARNING, logger="turnmill")
    weak = ProcessSandbox(spares=1)
    try:
        await weak.start()
    finally:
        await weak.close()

    assert "can read and write the server's files" in caplog.text


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


async def test_the_sandbox_leaves_nothing_in_the_temporary_folder(tmp_path):
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


async def until_started(run: asyncio.Task[object], mark: str) -> None:
    """Wait until a task's process runs; the task must not end before."""
    await until(lambda: run.done() or is_running(mark))
    assert is_running(mark) or not run.done(), run.result()


def is_running(mark: str) -> bool:
    return bool(marked(mark))


def supervisors_above(mark: str) -> set[int]:
    """Return the parents of the parents: `sh` runs `sleep`, and a supervisor runs `sh`."""
    parents = {parent(pid) for pid in marked(mark)}
    grandparents = {parent(pid) for pid in parents if Path(f"/proc/{pid}/comm").read_text() == "sh\n"}
    return grandparents - {1}


def user(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


async def until(condition) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        value = condition()
        if await value if asyncio.iscoroutine(value) else value:
            return
        assert time.monotonic() < deadline, "the condition did not become true in time"
        await asyncio.sleep(0.02)


async def test_a_result_tells_how_long_its_task_waited_for_room():
    sandbox = ForkSandbox(max_running=1)
    await sandbox.start()

    results = await asyncio.gather(*(sandbox.run(script("import time; time.sleep(0.2)")) for _ in range(2)))
    await sandbox.close()

    first, second = sorted(result.waiting_seconds for result in results)
    assert second - first >= 0.2
