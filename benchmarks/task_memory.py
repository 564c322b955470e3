"""Tries to find an earlier trajectory's secrets in a program's own memory, over HTTP, in a program and in a session.

OMP_NUM_THREADS=1 .venv/bin/python benchmarks/task_memory.py [--tries 200]

Each try has two trajectories. The first has a secret in its source, its standard input, its output and, in a session, a
variable. The second scans what it can reach of its address space, by `write` from each page into a pipe.
"""

import argparse
import asyncio
import json
import re
import secrets
from pathlib import Path
from typing import Any

import aiohttp
from runs import table
from tool_servers import serving

KINDS = ("python_code", "ipython_code")
SECRET = re.compile("SECRET:([0-9a-f]{32})")
HOLDER = """
import os, sys
kept = "{text}"
note = input()
print(os.path.dirname(os.getcwd()), kept)
print(kept, file=sys.stderr)
"""
SCANNER = (Path(__file__).parents[1] / "tests" / "integration" / "sandboxes" / "memory_scan.py").read_text()


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=200)
    options = parser.parse_args()
    rows = []
    for kind in KINDS:
        with serving("--tool_type", kind, "--set", "PYTHON_BLOCKED_WORDS=off") as server:
            rows.append((kind, *asyncio.run(tries(server.url, kind, options.tries))))
    print(table(("tool", "tries", "in the supervisor of the first", "MiB scanned, median", "secrets found"), rows))


async def tries(url: str, kind: str, number: int) -> tuple[int, int, int, int]:
    """Return the number of tries, how many had the same supervisor, MiB scanned, and secrets found."""
    reused, scanned, known, found = 0, [], set(), set()
    async with aiohttp.ClientSession() as session:
        for each in range(number):
            secret = secrets.token_hex(16)
            known.add(secret)
            held = await say(session, url, f"{kind}-{each}-a", HOLDER.format(text=f"SECRET:{secret} " * 3), secret)
            assert secret in held, held
            scan = json.loads(observed(await say(session, url, f"{kind}-{each}-b", SCANNER, "")))
            reused += scan["folder"] in held
            scanned.append(scan["bytes"])
            found |= known.intersection(scan["found"])
    return number, reused, sorted(scanned)[len(scanned) // 2] >> 20, len(found)


async def say(session: aiohttp.ClientSession, url: str, trajectory: str, source: str, stdin: str) -> str:
    """Run a program in a trajectory and return the observation."""
    body: dict[str, Any] = {
        "trajectory_ids": [trajectory],
        "actions": [f"<python>{source}</python>"],
        "extra_fields": [{"stdin": f"SECRET:{stdin}\\n"}],
    }
    async with session.post(url, json=body) as response:
        answer = await response.json()
    (observation,) = answer["observations"]
    return str(observation["obs"] if isinstance(observation, dict) else observation)


def observed(observation: str) -> str:
    """Return the line of JSON in an observation."""
    lines = [line for line in observation.splitlines() if line.startswith('{"')]
    if not lines:
        raise RuntimeError(f"the scan has failed:\n{observation}")
    return lines[0]


if __name__ == "__main__":
    main()
