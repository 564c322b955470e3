"""Many jobs at once: how fast the operator takes them up, how much it writes, how much memory it takes.

KUBECONFIG=... .venv/bin/python benchmarks/operator_load.py --jobs 500
"""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from runs import table

from support.jobs import job
from support.kubernetes import Namespace, temporary_namespace
from support.operator_process import OperatorProcess, operator_process
from support.ray_jobs import raw_team
from turnmill_operator.api import JOBS, ApiClient

RESOURCES = ("agenttrainingjobs", "rayjobs", "events")
LIMIT_SECONDS = 600.0


async def wait_for(namespace: Namespace, number: int, *states: str) -> float:
    """Return when so many jobs are in one of these states; tells when."""
    api, deadline = ApiClient(), time.monotonic() + LIMIT_SECONDS
    try:
        while True:
            found = [resource async for resource in api.list(JOBS, namespace.name)]
            if sum(resource.get("status", {}).get("state") in states for resource in found) >= number:
                return time.monotonic()
            assert time.monotonic() < deadline, "not in time"
            await asyncio.sleep(0.5)
    finally:
        await api.close()


def create(namespace: Namespace, number: int) -> None:
    """Create jobs whose Ray is suspended: KubeRay makes no pods for them."""
    items = [{**job(suspend=True), "metadata": {"name": f"job-{index}"}} for index in range(number)]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"apiVersion": "v1", "kind": "List", "items": items}, file)
        file.flush()
        namespace.kubectl("create", f"--filename={file.name}", timeout=LIMIT_SECONDS)


def writes(operator: OperatorProcess, resource: str) -> float:
    name = "turnmill_operator_api_requests_total"
    return sum(operator.metric(name, resource=resource, verb=verb) for verb in ("patch", "post", "put", "delete"))


async def crowd(operator: OperatorProcess, namespace: Namespace, number: int) -> list[list[Any]]:
    """Create jobs while the operator watches."""
    idle, seconds = operator.memory_mib(), operator.metric("process_cpu_seconds_total")
    began = time.monotonic()
    creating = asyncio.create_task(asyncio.to_thread(create, namespace, number))
    taken_up = await wait_for(namespace, number, "Suspending", "Suspended")
    await creating
    settled = await wait_for(namespace, number, "Suspended")
    return [
        ["jobs", number],
        ["created and taken up, s", f"{taken_up - began:.1f}"],
        ["taken up per s", f"{number / (taken_up - began):.1f}"],
        ["all suspended by KubeRay and reported, s", f"{settled - began:.1f}"],
        *([f"writes per job: {name}", f"{writes(operator, name) / number:.2f}"] for name in RESOURCES),
        ["writes per job", f"{operator.writes() / number:.2f}"],
        [
            "processor time per job, ms",
            f"{(operator.metric('process_cpu_seconds_total') - seconds) / number * 1000:.0f}",
        ],
        ["errors", operator.metric("turnmill_operator_errors_total")],
        ["memory idle, MiB", f"{idle:.0f}"],
        ["memory with them, MiB", f"{operator.memory_mib():.0f}"],
    ]


async def backlog(operator: OperatorProcess, namespace: Namespace, number: int) -> list[list[Any]]:
    """Start the operator on jobs that are there already: nothing but its own speed counts."""
    began = time.monotonic()
    taken_up = await wait_for(namespace, number, "Suspending", "Suspended")
    return [["taken up per s by an operator that finds them there", f"{number / (taken_up - began):.1f}"]]


def main() -> None:
    """Measure and print a table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=500)
    options.add_argument("--prefix", default="bench")
    given = options.parse_args()
    team = raw_team()
    rows: list[list[Any]] = []
    for measure in (crowd, backlog):
        with temporary_namespace(given.prefix) as namespace, tempfile.TemporaryDirectory() as folder:
            namespace.apply({**team, "metadata": {"name": team["metadata"]["name"]}})
            if measure is backlog:
                create(namespace, given.jobs)
            with operator_process(namespace.name, Path(folder) / "log") as operator:
                rows += asyncio.run(measure(operator, namespace, given.jobs))
    print(table(["what", "figure"], rows))


if __name__ == "__main__":
    main()
