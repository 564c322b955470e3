"""Thousands of jobs of many teams at once: taken up, running and ended, with one operator for all namespaces.

KUBECONFIG=... .venv/bin/python benchmarks/operator_fleet.py --jobs 5000 --teams 200

Needs kwok in the cluster. The operator starts when all jobs are there, and takes them up. Then this program plays
KubeRay, whose own deployment stands still meanwhile: it makes a head pod for every RayJob, on a fake node of kwok, and
reports the states of the run. It answers for the progress of every run, too, for which the operator asks every ten
seconds. At last it ends the runs, so many per second.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from runs import table

from support.jobs import job
from support.kubernetes import Namespace
from support.operator_process import OperatorProcess, operator_process
from support.ray_jobs import raw_team
from turnmill.jobs.team import run_dir
from turnmill_operator.api import CONFIG_MAPS, JOBS, PODS, RAY_JOBS, Resource, log_in
from turnmill_operator.resources import METRICS_PORT
from turnmill_operator.views import ATTEMPT_LABEL, JOB_LABEL

PREFIX = f"bench-fleet-{uuid.uuid4().hex[:4]}"
"""Namespaces of an earlier run may still be ending."""
NAMESPACES = Resource("v1", "namespaces")
NODES = Resource("v1", "nodes")
PODS_PER_NODE = 500
STEP_SECONDS = 300.0
"""A training step of a large model: the progress of each run changes so often."""

CONCURRENCY = 16
LIMIT_SECONDS = 1800.0

Raw = dict[str, Any]


@dataclass
class Fleet:
    """What is known of all jobs, by namespace and name."""

    reported: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    """When a job's status first had a state."""

    attempts: dict[tuple[str, str], int] = field(default_factory=dict)
    runs: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Folder and attempt of the run that answers at an address."""

    names: dict[tuple[str, str], str] = field(default_factory=dict)
    """Names of the jobs' RayJobs."""

    def number(self, state: str) -> int:
        """Return how many jobs have had a state."""
        return sum(state in seen for seen in self.reported.values())


class Api:
    """Requests of KubeRay's and of users to the API server."""

    def __init__(self) -> None:
        login = log_in()
        self._headers = dict(login.as_http_headers())
        connector = aiohttp.TCPConnector(ssl=login.as_ssl_context(), limit=0)
        self._session = aiohttp.ClientSession(base_url=login.server, connector=connector)
        self._limit = asyncio.Semaphore(CONCURRENCY)

    async def close(self) -> None:
        await self._session.close()

    async def send(self, verb: str, path: str, body: object, content: str = "application/json") -> Raw:
        """Send a request and return the answer; an object that is there already or no more is no error."""
        headers = self._headers | {"Content-Type": content}
        async with self._limit, self._session.request(verb, path, data=json.dumps(body), headers=headers) as response:
            found: Raw = await response.json()
            assert response.status < 400 or response.status in (404, 409), found
            return found

    async def report(self, namespace: str, name: str, **status: object) -> None:
        """Write to the status of a RayJob."""
        path = RAY_JOBS.path(namespace, name, "status")
        await self.send("PATCH", path, {"status": status}, "application/merge-patch+json")

    async def watch(self, resource: Resource, *, with_those_there: bool = False) -> AsyncIterator[tuple[str, Raw]]:
        """Yield what happens to objects of all namespaces, without end: from now on, or first those that are there."""
        version = "0"
        if not with_those_there:
            async with self._session.get(f"{resource.path(None)}?limit=1", headers=self._headers) as response:
                version = (await response.json())["metadata"]["resourceVersion"]
        while True:
            path = f"{resource.path(None)}?watch=1&resourceVersion={version}"
            timeout = aiohttp.ClientTimeout(total=None)
            async with self._session.get(path, headers=self._headers, timeout=timeout) as response:
                rest = b""
                async for part in response.content.iter_any():
                    *lines, rest = (rest + part).split(b"\n")
                    for line in lines:
                        event = json.loads(line)
                        version = event["object"]["metadata"]["resourceVersion"]
                        yield event["type"], event["object"]


async def all_of(work: Iterable[Awaitable[object]]) -> None:
    """Wait for all."""
    await asyncio.gather(*work)


async def until(holds: Callable[[], bool], what: str) -> float:
    """Wait, and return when it held."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not in time"
        await asyncio.sleep(0.2)
    return time.monotonic()


# ---- the cluster ----


@contextlib.contextmanager
def without_kuberay() -> Iterator[None]:
    """Scale KubeRay's deployment to nothing."""
    api = Namespace("default")
    found = json.loads(api.kubectl("get", "deployments", "--all-namespaces", "--output=json"))["items"]
    places = [each["metadata"] for each in found if each["metadata"]["name"].startswith("kuberay-operator")]

    def scale(number: int) -> None:
        for place in places:
            Namespace(place["namespace"]).kubectl("scale", f"deployment/{place['name']}", f"--replicas={number}")

    scale(0)
    try:
        yield
    finally:
        scale(1)


async def make_teams(api: Api, teams: list[str], nodes: list[str]) -> None:
    """Create namespaces with the settings of a team, and fake nodes."""
    resources = {"cpu": "100000", "memory": "100Ti", "pods": str(2 * PODS_PER_NODE)}
    await all_of(
        api.send("POST", NODES.path(None), {
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "annotations": {"kwok.x-k8s.io/node": "fake"}},
            "spec": {"taints": [{"key": "kwok", "value": "fake", "effect": "NoSchedule"}]},
            "status": {"allocatable": resources, "capacity": resources},
        })
        for name in nodes
    )  # fmt: skip
    await all_of(
        api.send("POST", NAMESPACES.path(None), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for name in teams
    )
    team = raw_team()
    await all_of(
        api.send("POST", CONFIG_MAPS.path(name), {**team, "metadata": {"name": team["metadata"]["name"]}})
        for name in teams
    )


async def remove(api: Api, teams: list[str], nodes: list[str]) -> None:
    """Delete namespaces and nodes; jobs without their finalizer, as no operator runs any more."""
    for team in teams:
        await api.send("DELETE", RAY_JOBS.path(team), {})
        path = f"{JOBS.path(team)}"
        found = await api.send("GET", path, None)
        await all_of(
            api.send(
                "PATCH",
                JOBS.path(team, item["metadata"]["name"]),
                {"metadata": {"finalizers": []}},
                "application/merge-patch+json",
            )
            for item in found["items"]
        )
        await api.send("DELETE", PODS.path(team), {"gracePeriodSeconds": 0})
    await all_of(api.send("DELETE", NAMESPACES.path(None, team), {}) for team in teams)
    await all_of(api.send("DELETE", NODES.path(None, node), {}) for node in nodes)


# ---- KubeRay and the runs ----


async def play_kuberay(api: Api, fleet: Fleet, nodes: list[str]) -> None:
    """Make a head pod for every RayJob, and report that its run goes on."""

    async def start(number: int, raw: Raw) -> None:
        metadata = raw["metadata"]
        namespace, name, labels = metadata["namespace"], metadata["name"], metadata["labels"]
        address = f"127.{1 + number // 62500}.{number // 250 % 250}.{1 + number % 250}"
        owner = next(each["uid"] for each in metadata["ownerReferences"])
        attempt = int(labels[ATTEMPT_LABEL])
        key = (namespace, labels[JOB_LABEL])
        fleet.runs[address] = (run_dir(namespace, labels[JOB_LABEL], owner), attempt)
        fleet.attempts[key] = attempt
        fleet.names[key] = name
        await api.send("POST", PODS.path(namespace), {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": f"{name}-head", "labels": {each: labels[each] for each in (JOB_LABEL, ATTEMPT_LABEL)}},
            "spec": {"nodeName": nodes[number % len(nodes)], "containers": [{"name": "ray", "image": "trainer"}],
                     "tolerations": [{"operator": "Exists"}]},
        })  # fmt: skip
        await api.report(
            namespace, name, jobStatus="RUNNING", jobDeploymentStatus="Running", rayClusterName=name,
            startTime=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            rayClusterStatus={"state": "ready", "head": {"podIP": address}},
        )  # fmt: skip

    seen: set[str] = set()
    async with asyncio.TaskGroup() as group:
        async for kind, raw in api.watch(RAY_JOBS, with_those_there=True):
            if kind == "ADDED" and raw["metadata"]["uid"] not in seen:
                seen.add(raw["metadata"]["uid"])
                group.create_task(start(len(seen), raw))


async def follow_jobs(api: Api, fleet: Fleet) -> None:
    """Record when each job's status has which state."""
    async for _, raw in api.watch(JOBS, with_those_there=True):
        if (state := raw.get("status", {}).get("state")) is not None:
            key = (raw["metadata"]["namespace"], raw["metadata"]["name"])
            fleet.reported.setdefault(key, {}).setdefault(state, time.monotonic())


@contextlib.asynccontextmanager
async def progress_of(fleet: Fleet) -> AsyncIterator[None]:
    """Answer for the progress of every run, at its own address of the loopback network."""
    began = time.monotonic()

    async def progress(request: web.Request) -> web.Response:
        assert request.transport is not None
        address = request.transport.get_extra_info("sockname")[0]
        run, attempt = fleet.runs[address]
        offset = sum(map(int, address.split("."))) % STEP_SECONDS
        step = int((time.monotonic() - began + offset) / STEP_SECONDS)
        return web.json_response({"run": run, "attempt": attempt, "step": step, "steps": 100, "rewardMean": 0.5})

    app = web.Application()
    app.router.add_get("/progress", progress)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", METRICS_PORT).start()
    try:
        yield
    finally:
        await runner.cleanup()


# ---- the measurement ----


@dataclass
class Peaks:
    """The greatest values of an operator."""

    memory_mib: float = 0.0
    queue: float = 0.0

    async def follow(self, operator: OperatorProcess) -> None:
        """Look once a second, without end."""
        while True:
            queue = await asyncio.to_thread(operator.metric, "turnmill_operator_queue_length")
            self.queue, self.memory_mib = max(self.queue, queue), max(self.memory_mib, operator.memory_mib())
            await asyncio.sleep(1.0)


async def create(api: Api, keys: list[tuple[str, str]]) -> None:
    """Create all jobs, as teams would."""
    await all_of(api.send("POST", JOBS.path(team), {**job(), "metadata": {"name": name}}) for team, name in keys)


async def measure(
    api: Api, operator: OperatorProcess, began: float, given: argparse.Namespace, keys: list[tuple[str, str]]
) -> list[list[Any]]:
    """Wait until an operator has taken up all jobs, let them run, and end them one after the other."""
    fleet, peaks = Fleet(), Peaks()

    def seconds() -> float:
        return operator.metric("process_cpu_seconds_total")

    async with progress_of(fleet):
        tasks = [asyncio.create_task(each) for each in (follow_jobs(api, fleet), peaks.follow(operator))]
        taken_up = await until(lambda: len(fleet.reported) >= given.jobs, "taken up")
        print(f"taken up after {taken_up - began:.0f} s", flush=True)
        nodes = [f"{PREFIX}-{number}" for number in range(num_nodes(given))]
        tasks.append(asyncio.create_task(play_kuberay(api, fleet, nodes)))
        running = await until(lambda: fleet.number("Running") >= given.jobs, "running")
        print(f"all run {running - taken_up:.0f} s later", flush=True)
        # All of them for a while: what asking for their progress takes.
        before = seconds()
        await asyncio.sleep(given.steady)
        steady = (seconds() - before) / given.steady
        ended: dict[tuple[str, str], float] = {}

        async def end(number: int, key: tuple[str, str]) -> None:
            await asyncio.sleep(number / given.ends_per_second)
            await api.report(key[0], fleet.names[key], jobStatus="SUCCEEDED", jobDeploymentStatus="Complete",
                             endTime=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))  # fmt: skip
            ended[key] = time.monotonic()

        ending = time.monotonic()
        await all_of(end(number, key) for number, key in enumerate(keys))
        done = await until(lambda: fleet.number("Complete") >= given.jobs, "ended")
        noticed = sorted(max(0.0, fleet.reported[key]["Complete"] - ended[key]) for key in keys)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    median, p99, greatest = statistics.median(noticed), noticed[int(len(noticed) * 0.99)], noticed[-1]
    return [
        ["jobs, teams", f"{given.jobs}, {given.teams}"],
        ["taken up per s", f"{given.jobs / (taken_up - began):.1f}"],
        ["from RayJob to running, per s", f"{given.jobs / (running - taken_up):.1f}"],
        ["cores while all run", f"{steady:.2f}"],
        ["ends per s", f"{given.jobs / (done - ending):.1f}"],
        ["end noticed after s: median, p99, greatest", f"{median:.2f}, {p99:.2f}, {greatest:.2f}"],
        ["longest queue", int(peaks.queue)],
        ["writes per job", f"{operator.writes() / given.jobs:.2f}"],
        ["processor time per job, ms", f"{seconds() / given.jobs * 1000:.0f}"],
        ["memory, greatest, MiB", f"{peaks.memory_mib:.0f}"],
        ["attempts above the first", sum(number > 1 for number in fleet.attempts.values())],
        ["errors", operator.metric("turnmill_operator_errors_total")],
    ]


def num_nodes(given: argparse.Namespace) -> int:
    """Return how many fake nodes the pods need."""
    return -(-given.jobs // PODS_PER_NODE)


async def run(given: argparse.Namespace) -> None:
    """Prepare the cluster, measure, and remove everything."""
    teams = [f"{PREFIX}-{number}" for number in range(given.teams)]
    nodes = [f"{PREFIX}-{number}" for number in range(num_nodes(given))]
    keys = [(teams[number % len(teams)], f"job-{number}") for number in range(given.jobs)]
    api = Api()
    try:
        await make_teams(api, teams, nodes)
        began = time.monotonic()
        await create(api, keys)
        print(f"created in {time.monotonic() - began:.0f} s", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            with operator_process(None, Path(folder) / "log") as operator:
                print(table(["what", "figure"], await measure(api, operator, began, given, keys)), flush=True)
    finally:
        await remove(api, teams, nodes)
        await api.close()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, default=5000)
    options.add_argument("--teams", type=int, default=200)
    options.add_argument("--ends-per-second", type=float, default=5.0)
    options.add_argument("--steady", type=float, default=60.0, help="seconds for which all of them run")
    given = options.parse_args()
    with without_kuberay():
        asyncio.run(run(given))


if __name__ == "__main__":
    main()
