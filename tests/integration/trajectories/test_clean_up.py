import asyncio

import redis
from typer.testing import CliRunner

from turnmill.cli.main import app
from turnmill.core.trajectory import Turn
from turnmill.observability.run_folder import RunFolder
from turnmill.trajectories.base import CallKey, Claim
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.journal import TrajectoryJournal
from turnmill.trajectories.store import TrajectoryStore

RUN_DIR = "/runs/team-a/babyai-1a2b3c4d"


def keys_with(redis_url: str, name: str) -> set[bytes]:
    with redis.Redis.from_url(redis_url) as client:
        return set(client.keys(f"*{name}*"))


async def write_data(redis_url: str, run: str) -> None:
    """Write the data of a run with tools: its journal, and a tool server's state of one trajectory."""
    journal = TrajectoryJournal.from_url(redis_url, run, attempt=1)
    await journal.claim_run(deadline=deadline_in(10))
    await journal.append(
        await journal.open("t1-0-0", deadline=deadline_in(10)), Turn((1,), (2,)), deadline=deadline_in(10)
    )
    await journal.close()
    store = TrajectoryStore.from_url(redis_url, "tool-server")
    claim = await store.begin(CallKey(f"{run}-t1-0-0-5eed", "turn-0"), "python_code", deadline=deadline_in(10))
    assert isinstance(claim, Claim)
    await store.commit(claim, b"an observation", deadline=deadline_in(10))
    await store.close()


def test_clean_up_deletes_all_data_of_a_run_and_nothing_else(redis_url):
    run, other = RunFolder(RUN_DIR).run_name(), RunFolder(f"{RUN_DIR}5").run_name()
    for name in (run, other):
        asyncio.run(write_data(redis_url, name))
    num_left, of_the_other = len(keys_with(redis_url, run)), keys_with(redis_url, other)

    result = CliRunner().invoke(app, ["clean-up", "--run-dir", RUN_DIR, "--store", redis_url])

    assert result.exit_code == 0, result.output
    assert f"Deleted {num_left} keys" in result.output
    assert num_left > 3
    assert keys_with(redis_url, run) == set()
    assert keys_with(redis_url, other) == of_the_other


def test_a_run_has_one_name_in_the_store_through_all_attempts():
    assert RunFolder(f"{RUN_DIR}.attempt-12").run_name() == RunFolder(RUN_DIR).run_name()
