"""Trajectories that call tool servers: run in a pod by `team_release.Caller`, with httpx alone.

Every call appends its number to a file in the trajectory's shell and prints that it did. A call without an answer, or
with 503, is sent again with its id. At the end the file shows which calls took effect, and how often. A call whose
program ran into its time limit is answered with that message; it does not count as lost.
"""

import argparse
import asyncio
import json
import os
import time
import uuid
from collections import Counter

import httpx

PAUSE_SECONDS = 0.2


async def main() -> None:
    options = parse()
    problems: Counter[str] = Counter()
    seconds: list[float] = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=options.trajectories)
    token = os.environ.get("TURNMILL_TOOL_SERVER_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    client = httpx.AsyncClient(base_url=options.url, headers=headers, timeout=60, limits=limits)
    async with client, asyncio.TaskGroup() as group:
        runs = [group.create_task(trajectory(client, options, problems, seconds)) for _ in range(options.trajectories)]
    files = [run.result() for run in runs]
    done = [answered for answered, _ in files]
    seconds.sort()
    report = {
        "calls": sum(map(len, done)),
        "without_time": len(seconds) - sum(map(len, done)),
        "lost": sum(len(answered - set(written)) for answered, written in files),
        "repeated": sum(len(written) - len(set(written)) for _, written in files),
        "in_order": all(written == sorted(written) for _, written in files),
        "sent_again": problems,
        "p50_seconds": seconds[len(seconds) // 2],
        "max_seconds": seconds[-1],
    }
    print(json.dumps(report))


async def trajectory(
    client: httpx.AsyncClient, options: argparse.Namespace, problems: Counter[str], seconds: list[float]
) -> tuple[set[int], list[int]]:
    """Return the calls that were answered as done, and the numbers in the file at the end."""
    name = f"caller-{uuid.uuid4().hex}"
    done = set()
    deadline = time.monotonic() + options.seconds
    number = 0
    while number < options.calls and time.monotonic() < deadline:
        begun = time.monotonic()
        command = f"sleep {options.sleep}; echo {number} >> calls && echo $((10000 + {number}))"
        if str(10000 + number) in await call(client, name, number, command, problems, options.patience):
            done.add(number)
            print(f"answered {number} {time.time()}", flush=True)
        seconds.append(time.monotonic() - begun)
        number += 1
        await asyncio.sleep(options.pause)
    text = await call(client, name, number, "cat calls", problems, options.patience)
    await client.post("/get_observation", json={"trajectory_ids": [name], "actions": [""], "finish": [True]})
    return done, [int(word) for word in text.split() if word.isdigit()]


async def call(
    client: httpx.AsyncClient, name: str, number: int, command: str, problems: Counter[str], patience: float
) -> str:
    """Send a call until it is answered; return the observation."""
    action = f"```bash\n{command}\n```"
    body = {"trajectory_ids": [name], "actions": [action], "extra_fields": [{"call_id": f"call-{number}"}]}
    deadline = time.monotonic() + patience
    while True:
        try:
            response = await client.post("/get_observation", json=body)
            if response.status_code == 200:
                return str(response.json()["observations"][0])
            problem = f"{response.status_code} {response.json().get('cause', '')}"
        except httpx.TransportError as error:
            problem = type(error).__name__
        problems[problem] += 1
        if time.monotonic() > deadline:
            raise TimeoutError(f"call {number} of {name}: {problem}, and no answer within {patience:g} s")
        await asyncio.sleep(PAUSE_SECONDS)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--trajectories", type=int, default=8)
    parser.add_argument("--calls", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=10**9)
    parser.add_argument("--sleep", default="0.5")
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--patience", type=float, default=60.0)
    return parser.parse_args()


asyncio.run(main())
