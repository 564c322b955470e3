"""Users of the chart's store: each can do its work, and nothing else."""

import asyncio
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis.asyncio
import redis.exceptions

from support.charts import TEAM
from turnmill.core.trajectory import TrajectoryMetadata, TrajectoryOutcome, Turn
from turnmill.trajectories import request_claims, scripts
from turnmill.trajectories.base import CallKey, Change, Claim, Recorded
from turnmill.trajectories.clean_up import forget_run
from turnmill.trajectories.client import StoreClient, deadline_in
from turnmill.trajectories.embedded import find_server
from turnmill.trajectories.journal import TrajectoryJournal
from turnmill.trajectories.request_claims import RequestClaims
from turnmill.trajectories.store import TrajectoryStore
from turnmill.trajectory_page.index import Index
from turnmill.trajectory_page.store_reader import StoreReader

RULES = TEAM / "files" / "store"
USERS = ["clean-up", "tool-server", "trainer"]
JOURNAL, ATTEMPT, STATE = "turnmill:run:journal:{a}", "turnmill:run:attempt", "turnmill:run:trajectory:{a}"
TURN = Turn(prompt_ids=(1,), response_ids=(2,))

Url = Callable[[str], str]
"""Returns the store's URL with the login of a user."""


def soon() -> float:
    return deadline_in(10)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The chart's store; returns the URL for a user."""
    folder = tmp_path_factory.mktemp("s")
    for name, words in {"store-password": {"password": "root"}, "store-users": {u: f"of-{u}" for u in USERS}}.items():
        (folder / name).mkdir()
        for file, word in words.items():
            (folder / name / file).write_text(word)
    socket = folder / "socket"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["sh", "-c", _script(folder, socket), "sh", "64mb"], stdout=log, stderr=log)
    try:
        with redis.Redis(unix_socket_path=str(socket), password="root") as client:
            _wait_for(client, process, folder / "log")
        yield lambda user: f"unix://{user}:{'root' if user == 'default' else f'of-{user}'}@{socket}"
    finally:
        process.kill()
        process.wait()


def _script(folder: Path, socket: Path) -> str:
    """Return the chart's script, for a server in a folder and on a socket instead of a pod's."""
    script = (RULES / "start.sh").read_text()
    (folder / "store").mkdir()
    for file in [*RULES.glob("*.acl"), RULES / "store.conf"]:
        text = file.read_text().replace("port 6379", f"port 0\nunixsocket {socket}").replace("/data", str(folder))
        (folder / "store" / file.name).write_text(text)
    assert "command -v valkey-server" in script
    script = re.sub("/(etc|tmp)/", f"{folder}/", script)
    # After that: this path may have one of those folders in it.
    return script.replace("command -v valkey-server", f"echo {find_server()}")


def _wait_for(client: redis.Redis, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(2000):
        try:
            client.ping()
        except redis.exceptions.ConnectionError:
            assert process.poll() is None, log.read_text()
            time.sleep(0.01)
        else:
            return
    raise TimeoutError(log.read_text())


@pytest.fixture
async def keys(store: Url):
    """A key of each kind, written by the user who may do everything."""
    async with redis.asyncio.Redis.from_url(store("default")) as client:
        await client.flushall()
        await client.hset(JOURNAL, "attempt", 1)
        await client.rpush(f"{JOURNAL}:turns", b"turn")
        await client.set(ATTEMPT, 1)
        for key in (STATE, f"{STATE}:calls", f"{STATE}:state:bash"):
            await client.hset(key, "field", "value")


async def test_agent_loops_and_their_readers_work_as_trainer(store: Url):
    journal = TrajectoryJournal.from_url(store("trainer"), "run", attempt=2)
    try:
        await journal.claim_run(deadline=soon())
        trajectory = await journal.open("a", metadata=TrajectoryMetadata(step=3), deadline=soon())
        trajectory = await journal.append(trajectory, TURN, deadline=soon())
        assert await journal.live(deadline=soon()) == [await journal.read("a", deadline=soon())]
        await journal.finish(trajectory, TrajectoryOutcome(), deadline=soon())
        await asyncio.to_thread(StoreReader(store("trainer"), include_finished=True).update, Index())
        await journal.delete("a", deadline=soon())
        assert await journal.names(deadline=soon()) == []
    finally:
        await journal.close()


async def test_replicas_of_a_gateway_work_as_trainer(store: Url, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(request_claims, "BEAT_SECONDS", 0.05)
    clients = [StoreClient(store("trainer")) for _ in range(2)]
    first, second = (RequestClaims(client, "run") for client in clients)
    try:
        claim = await first.claim("a", "request", deadline=soon())
        assert claim.held
        assert not (await second.claim("a", "request", deadline=soon())).held
        first.release(claim)
        async with asyncio.timeout(10):
            while not (await second.claim("a", "request", deadline=soon())).held:  # noqa: ASYNC110 (as replicas wait)
                await asyncio.sleep(0.02)
    finally:
        await first.close()
        await second.close()
        for client in clients:
            await client.close()


async def test_tool_servers_work_as_tool_server(store: Url):
    tools = TrajectoryStore.from_url(store("tool-server"), "run")
    try:
        await tools.ping(deadline=soon())
        assert await tools.info(deadline=soon())
        for call, change in {
            "1": Change(written={"a": b"1", "b": b"2"}),
            "2": Change(removed=("a",)),
            "3": None,
        }.items():
            claim = await tools.begin(CallKey("t", call), "bash", deadline=soon())
            assert isinstance(claim, Claim)
            await tools.renew(claim, deadline=soon())
            await tools.commit(claim, b"result", change, deadline=soon())
        assert isinstance(await tools.begin(CallKey("t", "3"), "bash", deadline=soon()), Recorded)
        claim = await tools.begin(CallKey("t", "4"), "bash", deadline=soon())
        assert isinstance(claim, Claim)
        await tools.release(claim, deadline=soon())
        claim = await tools.begin(CallKey("t", "5"), "bash", deadline=soon())
        assert isinstance(claim, Claim)
        await tools.commit(claim, b"end", Change(forget=True), finishes=True, deadline=soon())
        await tools.finish("t", deadline=soon())
        assert await tools.count(deadline=soon()) == 1
        await tools.delete("t", deadline=soon())
        assert await tools.count(deadline=soon()) == 0
    finally:
        await tools.close()


@pytest.mark.usefixtures("keys")
async def test_a_deleted_run_is_forgotten_as_clean_up(store: Url):
    client = StoreClient(store("clean-up"))
    try:
        assert await forget_run(client, "run", deadline=soon()) == 6
    finally:
        await client.close()


FOREIGN = {
    "trainer": (STATE, f"{STATE}:calls", f"{STATE}:state:bash", "turnmill:run:other", "elsewhere"),
    "tool-server": (JOURNAL, f"{JOURNAL}:turns", ATTEMPT, "turnmill:run:other", "elsewhere"),
    "clean-up": ("elsewhere",),
}


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(("user", "key"), [(user, key) for user, keys in FOREIGN.items() for key in keys])
async def test_a_user_reaches_no_other_keys_not_even_in_a_script(store: Url, user: str, key: str):
    async with redis.asyncio.Redis.from_url(store(user)) as client:
        for command in (
            ("HGETALL", key),
            ("HSET", key, "field", "forged"),
            ("UNLINK", key),
            ("EVAL", "return redis.call('HGETALL', KEYS[1])", 1, key),
            ("EVAL", "return redis.call('UNLINK', KEYS[1])", 1, key),
            # A key that is not declared, and a call that catches its error.
            ("EVAL", f"return redis.call('HSET', '{key}', 'field', 'forged')", 0),
            ("EVAL", f"local r = redis.pcall('HGETALL', '{key}') return r.err and error(r.err) or r", 0),
        ):
            with pytest.raises(redis.exceptions.ResponseError, match=r"(?i)permission"):
                await client.execute_command(*command)


POWERFUL = (
    "FLUSHALL", "FLUSHDB", "SHUTDOWN NOSAVE", "ACL LIST", "ACL SETUSER trainer +@all ~*", "ACL WHOAMI", "KEYS *",
    "REPLICAOF 127.0.0.1 6379", "BGREWRITEAOF", "SAVE", "MONITOR", "CLIENT LIST", "CLIENT KILL TYPE normal",
    "SCRIPT FLUSH", "SCRIPT KILL", "FUNCTION LIST", "MODULE LIST", "DUMP turnmill:run:attempt",
    "MIGRATE 127.0.0.1 1 x 0 1", "SWAPDB 0 1", "SUBSCRIBE x", "LATENCY RESET", "SLOWLOG GET", "MEMORY STATS",
    "CLUSTER INFO", "WAIT 1 1", "RESTORE turnmill:run:attempt 0 x", "RENAME turnmill:run:attempt x",
    "COPY turnmill:run:attempt x", "RANDOMKEY", "CONFIG GET requirepass", "DEBUG SLEEP 0", "FAILOVER", "SYNC",
)  # fmt: skip


@pytest.mark.parametrize("user", USERS)
async def test_a_user_has_no_power_over_the_store(store: Url, user: str):
    async with redis.asyncio.Redis.from_url(store(user)) as client:
        for words in map(str.split, POWERFUL):
            # CONFIG and DEBUG are nobody's: the store does not know them.
            with pytest.raises(redis.exceptions.ResponseError, match=r"(?i)no permissions|unknown command"):
                await client.execute_command(*words)
            for caller in (f"redis.call({', '.join(map(repr, words))})", "os.exit(1)", "loadfile('/etc/passwd')"):
                with pytest.raises(redis.exceptions.ResponseError):
                    await client.execute_command("EVAL", f"return {caller}", 0)


@pytest.mark.parametrize("login", [":", ":wrong", "trainer:of-tool-server", "nobody:root", "trainer:"])
async def test_nobody_gets_in_with_another_password(store: Url, login: str):
    url = store("default").replace("default:root", login)
    async with redis.asyncio.Redis.from_url(url) as client:
        with pytest.raises(redis.exceptions.ConnectionError, match=r"invalid username-password|already authenticated"):
            await client.get(ATTEMPT)


SCRIPTS = {
    "trainer": (
        "journal_append",
        "journal_finish",
        "journal_open",
        "journal_read",
        "request_claim",
        "request_release",
        "run_claim",
    ),
    "tool-server": ("trajectory", "begin", "commit", "delete", "finish", "release", "renew"),
}


def test_each_user_may_call_what_its_scripts_call():
    """Also in branches that few calls take."""
    folder = Path(scripts.__file__).parent
    assert {path.stem for path in folder.glob("*.lua")} == {name for names in SCRIPTS.values() for name in names}

    for user, names in SCRIPTS.items():
        allowed = set(re.findall(r"\+([a-z]+)", (RULES / f"{user}.acl").read_text()))
        source = "".join((folder / f"{name}.lua").read_text() for name in names)
        called = set(re.findall(r"redis\.p?call\('(\w+)'", source))
        assert called
        assert {call.lower() for call in called} <= allowed, user


@pytest.mark.parametrize("user", USERS)
def test_the_rules_name_no_subcommands_because_older_servers_refuse_to_start_with_those_that_they_lack(user):
    assert "|" not in (RULES / f"{user}.acl").read_text()
