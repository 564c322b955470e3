"""The chart's store as a cluster: its pods find one another, and stay together through restarts and lost disks."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.chart_store_cluster import PORT, StorePod, chart_store_cluster, wait_until
from support.contained_tests import can_contain
from support.programs import why_no_program
from support.server_process import eventually
from support.store_cluster import call
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.store import TrajectoryStore

MISSING = why_no_program("redis-cli")
pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")

NAMES = [f"t{number}" for number in range(30)]
HALF = {"master": 3, "slave": 3}


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[StorePod]]:
    with chart_store_cluster(tmp_path_factory.mktemp("s")) as started:
        yield started


@pytest.fixture
async def store(pods: list[StorePod]):
    opened = TrajectoryStore.from_url(f"redis+cluster://tool-server:of-tool-server@{pods[0].address}:{PORT}", "run")
    yield opened
    await opened.close()


def num_of_each_role(pods: list[StorePod]) -> Counter[str]:
    return Counter(pod.role for pod in pods)


async def test_each_primary_has_a_replica(pods: list[StorePod], store: TrajectoryStore):
    wait_until(lambda: num_of_each_role(pods) == HALF, pods)
    for name in NAMES:
        await call(store, name, 0, "")
    assert len([info for info in await store.info(deadline=deadline_in(10)) if info.get("db0")]) == 3


async def test_pods_that_come_back_with_other_addresses_and_one_without_its_disk_join_again(
    pods: list[StorePod], store: TrajectoryStore
):
    versions = {name: await call(store, f"{name}-moved", 0, "") for name in NAMES}
    primary = next(pod for pod in pods if pod.role == "master")
    primary.kill()
    wait_until(lambda: [pod.role for pod in pods].count("master") == 3, pods)

    primary.lose_disk()
    for number, pod in enumerate(pods):
        pod.kill()
        pod.address = pod.address.rsplit(".", 1)[0] + f".{100 + number}"
        pod.start()
        await asyncio.to_thread(wait_until, lambda pod=pod: pod.is_ready, pods)

    wait_until(lambda: num_of_each_role(pods) == HALF, pods)
    again = TrajectoryStore.from_url(f"redis+cluster://tool-server:of-tool-server@{pods[0].address}:{PORT}", "run")
    for name in NAMES:
        await call(again, f"{name}-moved", 1, versions[name])
    await again.close()


async def test_a_primary_that_is_asked_to_end_hands_over_first(pods: list[StorePod]):
    primary = next(pod for pod in pods if pod.role == "master")

    assert primary.run("leave.sh").wait(60) == 0

    assert primary.role == "slave", primary.log[-3000:]
    wait_until(lambda: num_of_each_role(pods) == HALF, pods)


def handles(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler for a signal."""
    (caught,) = [line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "SigCgt" in line]
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.skipif(not can_contain(), reason="needs unshare and the right to make namespaces")
def test_the_container_that_joins_ends_when_its_pod_does(pods: list[StorePod]):
    container = pods[0].run("join.sh", "6", "3", as_first=True)
    (children,) = Path(f"/proc/{container.pid}/task").glob("*/children")
    try:
        # A first process has no default for signals: before the script handles it, the signal has no effect.
        script = int(eventually(lambda: children.read_text()))
        eventually(lambda: handles(script, signal.SIGTERM))
        os.kill(script, signal.SIGTERM)

        assert container.wait(30) == 0
    finally:
        container.kill()
        container.wait()
