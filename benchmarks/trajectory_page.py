"""Latency of the page of a run with many trajectories, over HTTP and in a browser.

OMP_NUM_THREADS=1 .venv/bin/python benchmarks/trajectory_page.py [--trajectories 100000] [--folder DIR]
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from runs import table

from support.long_log import write_long_log

LISTS = {
    "first list": "/",
    "page 1,000 by reward": "/?sort=reward&page=1000",
    "solved, 5 turns or more, one environment": "/?outcome=solved&turns_from=5&environment=sokoban",
    "by name": "/?name=t7-",
}
LONG_TURNS, LONG_TOKENS = 64, 512


@contextmanager
def page(folder: Path, cache: Path) -> Iterator[tuple[str, float]]:
    """The address of the page, and the seconds until it was told."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "turnmill.cli.main", "view", str(folder), "--port", "0"],
        env=os.environ | {"XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().partition(": ")[2].split()[0], time.monotonic() - began
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=30)
        finally:
            process.kill()


def seconds_for(client: httpx.Client, path: str) -> float:
    began = time.perf_counter()
    client.get(path).raise_for_status()
    return time.perf_counter() - began


def wait_for_the_index(client: httpx.Client) -> None:
    while client.get("/revision").json()["reading"]:
        time.sleep(0.1)


def measured(name: str, seconds: list[float]) -> list[str]:
    ordered = sorted(seconds)
    return [
        name,
        *(
            f"{1000 * value:.0f}"
            for value in (statistics.median(ordered), ordered[int(0.95 * (len(ordered) - 1))], ordered[-1])
        ),
    ]


def in_a_browser(address: str, paths: dict[str, list[str]]) -> list[list[str]]:
    """From asking for a page to what it shows; nothing where there is no browser."""
    program = shutil.which("chromium")
    if program is None:
        return []
    from playwright.sync_api import sync_playwright

    rows = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.goto(address + "/revision")
        for name, of_name in paths.items():
            seconds = []
            for path in of_name:
                began = time.perf_counter()
                tab.goto(address + path)
                tab.locator("#list tbody tr, .token").first.wait_for()
                seconds.append(time.perf_counter() - began)
            rows.append(measured(f"{name}, in the browser", seconds))
        browser.close()
    return rows


def trajectories(client: httpx.Client, count: int) -> list[str]:
    """The addresses of so many trajectories, drawn from all."""
    draw = random.Random(1)
    pages = int(client.get("/").text.rpartition(" of ")[2].partition("<")[0].replace("\u202f", ""))
    found: list[str] = []
    while len(found) < count:
        text = client.get(f"/?page={draw.randint(1, pages)}").text
        links = [part.partition('"')[0] for part in text.split('href="')[1:]]
        found.append(draw.choice([link for link in links if link.startswith("/trajectory/")]).partition("?")[0])
    return found


def measure(folder: Path, cache: Path) -> None:
    began = time.monotonic()
    with page(folder, cache) as (address, told), httpx.Client(base_url=address, timeout=60) as client:
        first = seconds_for(client, "/")
        wait_for_the_index(client)
        indexed = time.monotonic() - began
        print(
            f"No index: address after {told:.1f} s, first list {1000 * first:.0f} ms later, "
            f"all read after {indexed:.0f} s"
        )
    began = time.monotonic()
    with page(folder, cache) as (address, told), httpx.Client(base_url=address, timeout=60) as client:
        first = seconds_for(client, "/")
        print(f"Started again: address after {told:.1f} s, first list {1000 * first:.0f} ms later")
        wait_for_the_index(client)
        some = trajectories(client, 200)
        rows = [measured(name, [seconds_for(client, path) for _ in range(20)]) for name, path in LISTS.items()]
        rows.append(measured("a trajectory", [seconds_for(client, path) for path in some]))
        long = "/trajectory/t0-long"
        rows.append(
            measured(
                f"one of {LONG_TURNS} turns of {LONG_TOKENS} tokens", [seconds_for(client, long) for _ in range(20)]
            )
        )
        rows += in_a_browser(
            address, {"first list": ["/"] * 20, "a trajectory": some[:50], "the long one": [long] * 10}
        )
    print(table(["", "median ms", "95 % ms", "most ms"], rows))


def write_long_trajectory(folder: Path) -> None:
    """One of many turns and tokens beside the others."""
    source = write_long_log(folder.with_name("one"), trajectories=1, turns=1, tokens=LONG_TOKENS)
    (file,) = source.trajectories.glob("step-000001.*")
    (line,) = [json.loads(text) for text in file.read_text().splitlines()]
    line = {name: value for name, value in line.items() if name not in ("done", "stop_reason", "failed_cause")}
    lines = [line | {"episode": "t0-long", "turn": turn} for turn in range(LONG_TURNS)]
    lines[-1] |= {"done": True, "stop_reason": "completed"}
    with (folder / "trajectories" / "step-000001.jsonl").open("a") as file:
        file.writelines(json.dumps(each, separators=(",", ":")) + "\n" for each in lines)
    shutil.rmtree(source.path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="where the run is made, or was made before")
    options: Any = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch) / "run"
        if not folder.exists():
            write_long_log(folder, trajectories=options.trajectories)
            write_long_trajectory(folder)
        size = sum(file.stat().st_size for file in (folder / "trajectories").iterdir())
        print(f"{options.trajectories:,} trajectories, {size / 1e9:.2f} GB in {folder}")
        measure(folder, Path(scratch) / "cache")


if __name__ == "__main__":
    main()
