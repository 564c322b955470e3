"""Programs in namespaces of their own, which try to get out of them."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from turnmill.core.errors import SandboxError, SettingsError
from turnmill.core.trajectory import EpisodeFailure
from turnmill.gateway.server import MAX_CONNECTIONS
from turnmill.observability.run_folder import RunFolder
from turnmill.rollout.harness.episode import EpisodeResult
from turnmill.rollout.harness.loop import HarnessLoop
from turnmill.sandboxes import program
from turnmill.testing.agent_loops import END, SAMPLING, TOKENIZER, job_of
from turnmill.testing.policies import ScriptedPolicy


@pytest.fixture(autouse=True, scope="module")
def _namespaces() -> None:
    try:
        program.require_namespaces()
    except SandboxError as error:
        pytest.skip(str(error))


ASK = """
import json, os, sys, openai

task = json.load(sys.stdin)
client = openai.OpenAI(max_retries=0)


def ask(text):
    message = {"role": "user", "content": text}
    return client.chat.completions.create(model="policy", messages=[message]).choices[0].message.content

"""

PROBE = (
    ASK
    + """
import ctypes, signal, socket
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
found = {}


def attempt(name, action):
    try:
        found[name] = action()
    except Exception as error:
        found[name] = type(error).__name__


def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(2)
        client.connect(address)
    return "connected"


for name, port in json.loads(os.environ["PORTS"]).items():
    attempt(name, lambda: connect(socket.AF_INET, ("127.0.0.1", port)))
service = json.loads(os.environ["PORTS"])["service"]
attempt("other address", lambda: connect(socket.AF_INET, (os.environ["ADDRESS"], service)))
attempt("names", lambda: socket.getaddrinfo("localhost.localdomain.invalid", 80))
attempt("unix socket", lambda: connect(socket.AF_UNIX, os.environ["SOCKET"]))
attempt("abstract socket", lambda: connect(socket.AF_UNIX, "\\0" + os.environ["ABSTRACT"]))
attempt("run folder", lambda: os.listdir(os.environ["RUN"]))
own = Path.cwd().parent
others = [name for name in os.listdir(own.parent) if name.startswith("turnmill-") and name != own.name]
attempt("other workspaces", lambda: others)
attempt("home", lambda: os.listdir(os.environ["OUTSIDE_HOME"]))
attempt("processes", lambda: len([name for name in os.listdir("/proc") if name.isdigit()]))
attempt("signal", lambda: os.kill(int(os.environ["OUTSIDE_PID"]), 0))
attempt("signal to the first", lambda: os.kill(1, signal.SIGKILL))
attempt("write to the system", lambda: Path("/etc/new").write_text(""))
attempt("write to the interpreter", lambda: Path(sys.prefix, "new").write_text(""))
attempt("make a device", lambda: os.mknod("device", 0o20666, os.makedev(1, 3)))
attempt("mount", lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
attempt("namespaces", lambda: libc.unshare(0x10000000))
attempt("ptrace", lambda: libc.ptrace(16, 1, 0, 0))
attempt("descriptors", lambda: sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1])
attempt("secrets", lambda: [name for name in os.environ if "SECRET" in name])
attempt("secrets of the first", lambda: b"SECRET" in Path("/proc/1/environ").read_bytes())
attempt("gain", lambda: os.setuid(1))
status = Path("/proc/self/status").read_text().splitlines()
attempt("rights", lambda: [line for line in status if line.startswith("Cap")])
attempt("write here", lambda: Path("mine").write_text("x"))
attempt("write to /tmp", lambda: Path("/tmp/mine").write_text("x"))
attempt("threads", lambda: len(os.sched_getaffinity(0)) > 0)
ask("How are you?")
print(json.dumps({"reward": 1, "found": found}))
"""
)

Begin = Callable[..., HarnessLoop]


@pytest.fixture
async def begin(tmp_path: Path) -> AsyncIterator[Begin]:
    loops: list[HarnessLoop] = []

    def create(code: str, **agent: Any) -> HarnessLoop:
        folder = tmp_path / "agent"
        folder.mkdir(exist_ok=True)
        (folder / "agent.py").write_text(code)
        run_dir = tmp_path / f"run{len(loops)}"
        RunFolder(run_dir).create()
        settings = {
            "type": "harness", "command": ["{python}", str(folder / "agent.py")], "groupSize": 2, "reward": "program",
            "sandbox": {"paths": [str(folder)]},
        } | agent  # fmt: skip
        settings = {name: value for name, value in settings.items() if value is not None}
        job = job_of(settings, {"name": "arithmetic"}, algorithm={"type": "grpo"}, tasksPerStep=1)
        policy = ScriptedPolicy(TOKENIZER, [f"answer {number}{END}" for number in range(20)])
        loops.append(HarnessLoop(server_manager=policy, tokenizer=TOKENIZER, job=job, run_dir=run_dir))
        return loops[-1]

    yield create
    for loop in loops:
        await loop.close()


def address_of_this_machine() -> str:
    """Return an address that other machines would use."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        unsent.connect(("192.0.2.1", 9))
        return str(unsent.getsockname()[0])


async def play(loop: HarnessLoop, session: int = 0) -> EpisodeResult | EpisodeFailure:
    return await loop.run(SAMPLING, index=0, session_id=session, global_steps=1)


async def result_of(loop: HarnessLoop, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Play a trajectory; return what its program printed."""
    results: list[Any] = []
    reward = loop._reward

    async def spy(episode: Any, ended: Any) -> float:
        results.append(dict(ended.result))
        return await reward(episode, ended)

    monkeypatch.setattr(loop, "_reward", spy)
    played = await play(loop)
    assert isinstance(played, EpisodeResult), played
    return dict(results[0])


async def test_programs_at_once_talk_to_the_policy_and_nothing_else(begin: Begin):
    code = ASK + """
for number in range(3):
    ask(f"And {number}?")
print(json.dumps({"reward": 0.5}))
"""  # fmt: skip
    loop = begin(code)

    played = await asyncio.gather(*(play(loop, session) for session in range(4)))

    for result in played:
        assert isinstance(result, EpisodeResult), result
        assert (result.summary.reward, result.summary.num_turns) == (0.5, 3)
    # No gateway of this machine was needed.
    assert loop._server is None


async def test_a_program_reaches_nothing_but_the_gateway(begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RUN_SECRET", "secret")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "key").write_text("secret")
    path, abstract = str(tmp_path / "store.sock"), f"turnmill-test-{os.getpid()}"
    with (
        socket.create_server(("0.0.0.0", 0)) as service,
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_UNIX) as unnamed,
    ):
        named.bind(path)
        unnamed.bind(f"\0{abstract}")
        for listener in (named, unnamed):
            listener.listen()
        variables = {
            "PORTS": json.dumps({"service": service.getsockname()[1], "gateway": program.PORT}),
            "ADDRESS": address_of_this_machine(),
            "SOCKET": path,
            "ABSTRACT": abstract,
            "RUN": str(tmp_path / "run0"),
            "OUTSIDE_HOME": str(tmp_path / "home"),
            "OUTSIDE_PID": str(os.getpid()),
        }

        found = (await result_of(begin(PROBE, variables=variables), monkeypatch))["found"]

    assert found.pop("gateway") == "connected"
    assert found.pop("processes") <= 3
    assert found.pop("descriptors") == [0, 1, 2]
    assert {line.split()[1] for line in found.pop("rights") if not line.startswith("CapBnd")} == {"0" * 16}
    assert found == {
        "service": "ConnectionRefusedError",
        "other address": "OSError",
        "names": "gaierror",
        "unix socket": "FileNotFoundError",
        "abstract socket": "ConnectionRefusedError",
        "run folder": "FileNotFoundError",
        "other workspaces": [],
        "home": "FileNotFoundError",
        "signal": "ProcessLookupError",
        "signal to the first": None,
        "write to the system": "OSError",
        "write to the interpreter": "OSError",
        "make a device": "PermissionError",
        "mount": -1,
        "namespaces": -1,
        "ptrace": -1,
        "secrets": [],
        "secrets of the first": False,
        "gain": "OSError" if os.geteuid() == 0 else "PermissionError",
        "write here": 1,
        "write to /tmp": 1,
        "threads": True,
    }


async def test_what_a_program_leaves_behind_ends_with_it(begin: Begin):
    mark = f"left-by-{os.getpid()}"
    code = ASK + f"""
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", {mark!r}])
        os._exit(0)
ask("Done?")
print(json.dumps({{"reward": 1}}))
"""  # fmt: skip

    assert isinstance(await play(begin(code)), EpisodeResult)

    assert running(mark) == []


async def test_a_program_out_of_time_ends_with_all_of_its_namespace(begin: Begin):
    mark = f"late-by-{os.getpid()}"
    code = ASK + f"""
import subprocess, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", {mark!r}], start_new_session=True)
ask("Wait?")
time.sleep(600)
"""  # fmt: skip

    result = await play(begin(code, timeoutSeconds=8.0))

    assert isinstance(result, EpisodeFailure)
    assert result.cause == "harness"
    assert running(mark) == []


def running(mark: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


async def test_a_program_reads_the_paths_of_the_job_alone(begin: Begin, tmp_path: Path, monkeypatch):
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "data").write_text("5")
    (tmp_path / "hidden").write_text("7")
    code = ASK + f"""
ask("Ready?")
seen = open({str(tmp_path / "linked" / "data")!r}).read(), os.path.exists({str(tmp_path / "hidden")!r})
print(json.dumps({{"reward": 1, "seen": seen}}))
"""  # fmt: skip
    # As virtual environments often are, a path may be a link.
    (tmp_path / "linked").symlink_to("shown")
    paths = [str(tmp_path / "agent"), str(tmp_path / "linked")]

    assert (await result_of(begin(code, sandbox={"paths": paths}), monkeypatch))["seen"] == ["5", False]


async def test_a_function_plays_in_the_sandbox(begin: Begin, tmp_path: Path, monkeypatch):
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "helper.py").write_text("REWARD = 0.25")
    code = """
import openai
from helper import REWARD


def play(task):
    openai.OpenAI().chat.completions.create(model="policy", messages=task["messages"])
    return {"reward": REWARD}
"""
    loop = begin(code, command=None, entryPoint=f"{tmp_path}/agent/agent.py:play", sandbox={})

    assert (await result_of(loop, monkeypatch))["reward"] == 0.25


async def test_a_program_that_the_sandbox_does_not_show_fails_with_the_way_out(begin: Begin, tmp_path: Path):
    script = tmp_path / "hidden.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    (tmp_path / "agent").mkdir()

    # A script beside a user's files is not shown for its own sake.
    result = await play(begin("", command=["sh", "-c", str(script)], sandbox={}))

    assert isinstance(result, EpisodeFailure)
    assert "not found" in result.message


async def test_connections_of_a_program_are_limited_and_others_have_theirs(begin: Begin):
    code = (
        ASK
        + """
import socket

connections = [socket.create_connection(("127.0.0.1", 9700)) for _ in range(400)]
for connection in connections:
    connection.settimeout(0.05)
closed = 0
for connection in connections:
    try:
        closed += connection.recv(1) == b""
    except ConnectionError:
        closed += 1
    except TimeoutError:
        pass
for connection in connections:
    connection.close()
ask("How are you?")
print(json.dumps({"reward": 1, "metrics": {"closed": closed}}))
"""
    )
    loop = begin(code)

    results = await asyncio.gather(*(play(loop, number) for number in range(2)))

    assert [each.summary.metrics["result_closed"] for each in results] == [400 - MAX_CONNECTIONS] * 2


async def test_processes_are_limited(begin: Begin, monkeypatch: pytest.MonkeyPatch):
    code = ASK + """
import threading
started = 0
stop = threading.Event()
try:
    for _ in range(200):
        threading.Thread(target=stop.wait, daemon=True).start()
        started += 1
except RuntimeError:
    pass
stop.set()
ask("How many?")
print(json.dumps({"reward": 1, "started": started}))
"""  # fmt: skip
    if os.geteuid() == 0:
        pytest.skip("the kernel limits no processes of root")
    sandbox = {"paths": [sys.prefix], "processes": 50}

    assert (await result_of(begin(code, sandbox=sandbox), monkeypatch))["started"] < 50


async def test_a_machine_without_namespaces_is_told_of_before_a_trajectory(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
):
    refuse = (
        "from turnmill.sandboxes import kernel, syscall_filter; kernel.forbid_new_privileges(); "
        "kernel.install_filter(syscall_filter.build_program_filter()); main(o)"
    )
    monkeypatch.setattr(program, "_BOOT", program._BOOT.replace("main(o)", refuse))

    with pytest.raises(SettingsError, match=r"spec\.agent\.sandbox: .*Operation not permitted.*user namespaces"):
        begin(ASK)
    with pytest.raises(SandboxError):
        program.require_namespaces()


async def test_an_environment_that_starts_its_own_programs_is_not_taken_for_sandboxed(begin: Begin, tmp_path: Path):
    agent = {"type": "harness", "sandbox": {}, "groupSize": 2}
    job = job_of(agent, {"name": "verifiers", "task": "glossary"}, algorithm={"type": "grpo"}, tasksPerStep=1)

    with pytest.raises(SettingsError, match=r"spec\.agent\.sandbox: is for programs"):
        HarnessLoop(server_manager=ScriptedPolicy(TOKENIZER, []), tokenizer=TOKENIZER, job=job, run_dir=tmp_path)
