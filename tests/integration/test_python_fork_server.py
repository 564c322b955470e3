import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.jobs import job
from support.server_process import alive, eventually
from turnmill.core.activity import shows_activity
from turnmill.core.process_mark import NO_MARK, PROCESS_MARK, show_in_proc
from turnmill.jobs import parse_job
from turnmill.runs.fork_server import PythonForkServer
from turnmill.runs.fork_server.launcher import CLIENT, INTERPRETER
from turnmill.runs.local import _imports_kept
from turnmill.runs.processes import find_marked, owned, terminate_marked

SECONDS = 60


@pytest.fixture
def modules(tmp_path, monkeypatch) -> Path:
    """A folder of modules that a fork server can import; `heavy` records which process imports it."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "heavy.py").write_text(
        f"import os\nwith open({str(tmp_path / 'imports')!r}, 'a') as notes: notes.write(f'{{os.getpid()}}\\n')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return folder


@pytest.fixture
def server(tmp_path, modules) -> Iterator[PythonForkServer]:
    started = PythonForkServer(tmp_path, ("heavy",), ())
    yield started
    started.close()


def run(server: PythonForkServer, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(server.python), *arguments], capture_output=True, text=True, timeout=SECONDS, check=False, **options
    )


def imports(tmp_path: Path) -> list[int]:
    return [int(line) for line in (tmp_path / "imports").read_text().split()]


def wait_until_gone(pid: int) -> None:
    eventually(lambda: not alive(pid), seconds=SECONDS)


def test_code_runs_with_its_arguments_folder_environment_and_input(server, tmp_path):
    code = "import os, sys; print(sys.argv, os.getcwd(), os.environ['WHO'], sys.stdin.read()); sys.exit(3)"

    result = run(server, "-B", "-c", code, "a b", "c", cwd=tmp_path, env={**os.environ, "WHO": "me"}, input="hello")

    assert result.stdout == f"['-c', 'a b', 'c'] {tmp_path} me hello\n"
    assert result.returncode == 3, result.stderr


def test_modules_of_the_fork_server_are_imported_once_and_shared_by_its_forks(server, tmp_path):
    results = [run(server, "-c", "import os, heavy; print(os.getppid())") for _ in range(2)]

    assert [int(result.stdout) for result in results] == [server.process.pid] * 2
    assert imports(tmp_path) == [server.process.pid]


def test_garbage_is_collected_in_forks_but_not_during_imports(tmp_path, modules):
    (modules / "collecting.py").write_text("import gc\nENABLED = gc.isenabled()")
    server = PythonForkServer(tmp_path, ("collecting",), ())

    result = run(server, "-c", "import collecting, gc; print(collecting.ENABLED, gc.isenabled())")
    server.close()

    assert result.stdout == "False True\n"


def test_a_client_waits_for_a_server_that_does_not_listen_yet(tmp_path, modules):
    slow = "def listen(self, *arguments, listen=socket.socket.listen): time.sleep(1); listen(self, *arguments)"
    (modules / "sitecustomize.py").write_text(f"import socket, time\n{slow}\nsocket.socket.listen = listen\n")
    server = PythonForkServer(tmp_path, ("heavy",), ())
    eventually(lambda: any(tmp_path.glob("fork_server.sock*")), seconds=SECONDS)

    result = run(server, "-c", "import os; print(os.getppid())")

    server.close()
    assert int(result.stdout) == server.process.pid


def test_a_client_waits_for_a_server_that_waits_for_the_imports_of_another(tmp_path, modules):
    (modules / "slow.py").write_text("import time\ntime.sleep(7)\n")
    early, late = tmp_path / "early", tmp_path / "late"
    early.mkdir()
    late.mkdir()
    first = PythonForkServer(early, ("slow",), ())
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(INTERPRETER, str(first.python))
        second = PythonForkServer(late, ("slow",), ())

    result = run(second, "-c", "import os; print(os.getppid())")

    assert int(result.stdout) == second.server_pid()
    second.close()
    first.close()


def test_a_client_runs_python_itself_if_the_server_has_died_before_it_listened(server, tmp_path):
    server.close()
    tmp_path.joinpath("fork_server.sock").unlink(missing_ok=True)

    assert run(server, "-c", "print('here')").stdout == "here\n"


def test_a_client_that_dies_while_it_waits_does_not_affect_other_clients(server):
    earlier = subprocess.Popen([str(server.python), "-c", "print('here', flush=True); input()"], stdin=-1, stdout=-1)
    assert earlier.stdout is not None
    assert earlier.stdout.readline() == b"here\n"
    request = json.dumps({"arguments": ["-c", ""], "environment": {}, "folder": "/", "descriptors": []}).encode()
    server.process.send_signal(signal.SIGSTOP)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(server.python.with_name("fork_server.sock")))
        client.sendall(struct.pack("!I", len(request)) + request)
    server.process.send_signal(signal.SIGCONT)

    assert run(server, "-c", "import os; print(os.getppid())").stdout == f"{server.process.pid}\n"

    earlier.communicate(b"\n", timeout=SECONDS)
    assert earlier.returncode == 0


def test_a_client_whose_fork_fails_runs_python_itself_and_later_clients_are_forked(tmp_path, modules):
    refuse = "def once(): os.fork = fork; raise BlockingIOError(11, 'no more processes')"
    (modules / "full.py").write_text(f"import os\nfork = os.fork\n{refuse}\nos.fork = once\n")
    server = PythonForkServer(tmp_path, ("full",), ())

    results = [run(server, "-c", "import os; print(os.getppid())").stdout for _ in range(2)]

    server.close()
    assert results[0] != f"{server.process.pid}\n"
    assert int(results[0]) > 0
    assert results[1] == f"{server.process.pid}\n"


def test_scripts_and_modules_run_as_main(server, modules):
    (modules / "tool.py").write_text("import sys; print(__name__, __file__, sys.argv[1:], flush=True)")

    assert run(server, str(modules / "tool.py"), "x").stdout == f"__main__ {modules / 'tool.py'} ['x']\n"
    assert run(server, "-m", "tool", "x").stdout == f"__main__ {modules / 'tool.py'} ['x']\n"


def test_an_exception_has_the_exit_code_and_traceback_of_python(server):
    result = run(server, "-c", "raise ValueError('no')")

    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "ValueError: no"


def test_inherited_descriptors_keep_their_numbers(server):
    reading, writing = os.pipe()
    code = f"import os; os.write({writing}, b'through')"

    result = run(server, "-c", code, pass_fds=[writing])
    os.close(writing)

    assert os.read(reading, 100) == b"through", result.stderr
    os.close(reading)


def test_a_signal_to_the_client_reaches_the_fork(server):
    code = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print('up', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([str(server.python), "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"

    process.send_signal(signal.SIGTERM)

    assert process.wait(SECONDS) == 7


def test_a_signal_that_comes_before_the_server_has_accepted_reaches_the_fork(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen()
        process = subprocess.Popen([sys.executable, "-I", "-S", str(CLIENT), str(tmp_path / "socket"), "-c", ""])
        connection, _ = server.accept()
        with connection:
            connection.settimeout(SECONDS)
            assert connection.recv(65536)

            process.send_signal(signal.SIGTERM)
            connection.sendall(b"y")

            # What is left of the request, then the signal.
            while (received := connection.recv(65536))[-1:] != bytes([signal.SIGTERM]):
                assert received
            connection.sendall(struct.pack("!i", 7))
        assert process.wait(SECONDS) == 7


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_the_client_ends_with_the_signal_that_ended_the_fork(server, number):
    result = run(server, "-c", f"import os; os.kill(os.getpid(), {int(number)})")

    assert result.returncode == -number


def test_killing_the_client_kills_the_fork(server):
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    process = subprocess.Popen([str(server.python), "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    fork_pid = int(process.stdout.readline())

    process.kill()
    process.wait(SECONDS)

    wait_until_gone(fork_pid)


def test_all_forks_end_with_the_fork_server(server):
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    process = subprocess.Popen([str(server.python), "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    fork_pid = int(process.stdout.readline())

    server.close()

    wait_until_gone(fork_pid)
    assert process.wait(SECONDS) == -signal.SIGKILL


def test_code_runs_once_even_if_the_fork_server_is_killed_right_after_its_fork(tmp_path, modules):
    ran = tmp_path / "ran"
    (modules / "killed.py").write_text(
        "import os, pathlib, time\n"
        "def end():\n"
        f"    while not pathlib.Path({str(ran)!r}).exists(): time.sleep(0.01)\n"
        "    os.kill(os.getpid(), 9)\n"
        "os.register_at_fork(after_in_parent=end)\n"
    )
    server = PythonForkServer(tmp_path, ("killed",), ())

    result = run(server, "-c", f"import os, time; os.mkdir({str(ran)!r}); time.sleep(600)")

    # The second time, mkdir would raise.
    assert result.returncode == -signal.SIGKILL
    server.close()


def test_a_fork_server_that_is_a_fork_of_another_has_its_imports_and_the_mark_of_its_own_run(
    modules, tmp_path, monkeypatch
):
    monkeypatch.setenv(PROCESS_MARK, NO_MARK)
    with_imports = PythonForkServer(tmp_path, ("heavy",), ())
    (tmp_path / "of_the_run").mkdir()
    (tmp_path / "of_the_run" / "light.py").touch()
    monkeypatch.setenv(INTERPRETER, str(with_imports.python))
    monkeypatch.setenv(PROCESS_MARK, "a" * 32)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'of_the_run'}")
    server = PythonForkServer(tmp_path / "of_the_run", ("heavy", "light"), ())

    # Without a thread that shows activity, it would be taken for one that stands still.
    code = "import heavy, light, os, time; print(os.getpid(), os.getppid(), flush=True); time.sleep(600)"
    process = subprocess.Popen([str(server.python), "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]

    assert imports(tmp_path) == [with_imports.process.pid]
    assert [shows_activity(pid) for pid in pids] == [True, False]
    assert set(pids) < set(find_marked("a" * 32))
    assert with_imports.process.pid not in find_marked("a" * 32)

    server.close()

    assert process.wait(SECONDS) == -signal.SIGKILL
    for pid in pids:
        wait_until_gone(pid)
    with_imports.close()


def test_a_run_that_may_be_tried_again_makes_the_early_imports_of_all_attempts_once(modules, tmp_path, monkeypatch):
    monkeypatch.setattr("turnmill.runs.fork_server.modules.EARLY", ("heavy",))
    monkeypatch.delenv(INTERPRETER, raising=False)
    given = parse_job(job(retries=1))

    with owned(tmp_path / "run") as owner, _imports_kept(given, "cpu", owner):
        kept = os.environ[INTERPRETER]
        for attempt in ("first", "second"):
            (tmp_path / attempt).mkdir()
            server = PythonForkServer(tmp_path / attempt, ("heavy",), ())
            assert run(server, "-c", "import heavy").returncode == 0
            terminate_marked(owner.mark)
            server.close()
        assert len(imports(tmp_path)) == 1

    assert INTERPRETER not in os.environ
    assert not Path(kept).exists()
    wait_until_gone(imports(tmp_path)[0])


@pytest.mark.parametrize(("retries", "device"), [(0, "cpu"), (1, "cuda")])
def test_imports_are_not_kept_where_no_attempt_could_use_them(tmp_path, monkeypatch, retries, device):
    monkeypatch.delenv(INTERPRETER, raising=False)

    with owned(tmp_path / "run") as owner, _imports_kept(parse_job(job(retries=retries)), device, owner):
        assert INTERPRETER not in os.environ


def test_a_mark_of_another_length_cannot_be_shown():
    with pytest.raises(ValueError, match="TURNMILL_PROCESS_MARK of 3 characters"):
        show_in_proc("abc")


def test_a_fork_server_ends_with_the_process_that_starts_it(modules, tmp_path):
    code = (
        "import os, sys, pathlib, time; from turnmill.runs.fork_server import PythonForkServer\n"
        "print(PythonForkServer(pathlib.Path(sys.argv[1]), (), ()).process.pid, flush=True); time.sleep(600)"
    )
    starter = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())

    starter.kill()
    starter.wait(SECONDS)

    wait_until_gone(pid)


def test_spawned_processes_of_multiprocessing_are_forks_as_well(server, modules, tmp_path):
    (modules / "spawner.py").write_text(
        "import multiprocessing, os\n"
        "def report(queue): import heavy; queue.put(os.getpid())\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    queue = context.Queue()\n"
        "    process = context.Process(target=report, args=(queue,))\n"
        "    process.start(); print(queue.get(timeout=60)); process.join(60); print(process.exitcode)\n"
    )

    result = run(server, str(modules / "spawner.py"))

    assert result.stdout.split()[-1] == "0", result.stderr
    assert imports(tmp_path) == [server.process.pid]


def test_forks_do_not_share_their_random_numbers(server):
    code = "import random; print(random.random())"

    assert run(server, "-c", code).stdout != run(server, "-c", code).stdout


def test_a_client_runs_python_itself_after_the_fork_server_has_ended(server):
    server.close()

    result = run(server, "-c", "import os, sys; print(sys.executable)")

    assert result.stdout.strip() == sys.executable


def test_late_modules_are_imported_with_the_environment_of_the_job(tmp_path, modules):
    (modules / "late.py").write_text("import os; job = os.environ['RAY_JOB_ID']")
    server = PythonForkServer(tmp_path, ("heavy",), ("late",))
    code = "import late, os; print(late.job, os.getppid())"

    first = run(server, "-c", code, env={**os.environ, "RAY_JOB_ID": "01"})
    other = run(server, "-c", code, env={**os.environ, "RAY_JOB_ID": "02"})
    server.close()

    assert first.stdout == f"01 {server.process.pid}\n"
    assert other.stdout.split()[0] == "02"
    assert other.stdout.split()[1] != str(server.process.pid), "a process of another job must not be a fork of this one"


def test_a_fork_server_with_threads_forks_nothing(tmp_path, modules):
    (modules / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    server = PythonForkServer(tmp_path, ("threaded",), ())

    result = run(server, "-c", "import os; print(os.getppid())")

    assert result.stdout.strip() != str(server.process.pid)
    assert server.process.wait(SECONDS) == 0
    assert "no forking" in (tmp_path / "fork_server.log").read_text()


def test_forks_do_not_share_ray_s_random_ids(tmp_path, modules):
    (modules / "actors.py").write_text("import ray\n@ray.remote\nclass Declared: ...")
    server = PythonForkServer(tmp_path, (), ("turnmill.runs.fork_server.patch_ray", "actors"))
    code = "import os, actors, ray; print(os.getppid(), ray.NodeID.from_random().hex())"

    results = [run(server, "-c", code).stdout.split() for _ in range(2)]
    server.close()

    assert [int(parent) for parent, _ in results] == [server.process.pid] * 2
    assert results[0][1] != results[1][1]


def test_a_fork_server_whose_imports_drew_ids_from_ray_s_generator_forks_nothing(tmp_path, modules):
    (modules / "actors.py").write_text("import ray\n@ray.remote\nclass Declared: ...")
    server = PythonForkServer(tmp_path, (), ("actors",))

    result = run(server, "-c", "import os; print(os.getppid())")

    assert result.stdout.strip() != str(server.process.pid)
    assert server.process.wait(SECONDS) == 0
    assert "ids from Ray's generator" in (tmp_path / "fork_server.log").read_text()


def test_a_pod_s_fork_server_outlives_the_process_that_starts_it(tmp_path, modules):
    code = (
        "from pathlib import Path; from turnmill.runs.fork_server import PythonForkServer; "
        f"print(PythonForkServer(Path({str(tmp_path)!r}), ('heavy',), (), outlives_parent=True).process.pid)"
    )
    started = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=True)
    pid = int(started.stdout)
    try:
        command = [sys.executable, "-I", "-S", str(CLIENT), str(tmp_path / "fork_server.sock")]
        result = subprocess.run(
            [*command, "-c", "import os, heavy; print(os.getppid())"], capture_output=True, text=True, timeout=SECONDS
        )

        assert int(result.stdout) == pid
        assert imports(tmp_path) == [pid]
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_client_runs_python_itself_if_no_fork_server_was_started(tmp_path, modules):
    command = [sys.executable, "-I", "-S", str(CLIENT), str(tmp_path / "nowhere" / "fork_server.sock")]

    result = subprocess.run([*command, "-c", "import heavy, os; print(os.getpid())"], capture_output=True, text=True)

    assert imports(tmp_path) == [int(result.stdout)]


def test_every_fork_has_its_own_process_group(server):
    groups = {run(server, "-c", "import os; print(os.getpgid(0))").stdout for _ in range(2)}

    assert len(groups) == 2
    assert str(os.getpgid(server.process.pid)) not in {group.strip() for group in groups}
