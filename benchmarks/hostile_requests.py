"""What hostile requests cost a tool server: how long `/health` takes beside them, and how much memory they take.

OMP_NUM_THREADS=1 .venv/bin/python benchmarks/hostile_requests.py [--tries 3]
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence

from runs import table
from tool_servers import serving

from support.hostile_requests import (
    BOMB,
    SLOW_CONNECTIONS,
    Watch,
    bomb_site,
    open_bombs,
    send_many_actions,
    slow_connections,
)
from support.server_process import ServerProcess

HELD_SECONDS = 5.0
SETTINGS = (
    *("--tool_type", "text_browser,python_code", "--max_concurrent_requests", "256"),
    *("--set", "BROWSER_PRIVATE_ADDRESSES=allow"),
)


def wait(server: ServerProcess) -> Sequence[int]:
    """Send nothing."""
    time.sleep(HELD_SECONDS)
    return ()


def hold_slow_connections(server: ServerProcess) -> Sequence[int]:
    """Hold connections on which a request has begun."""
    with slow_connections(server):
        return wait(server)


def open_bombs_of_a_site(server: ServerProcess) -> Sequence[int]:
    """Open pages that become large."""
    with bomb_site() as url:
        return open_bombs(server, url)


ATTACKS: dict[str, Callable[[ServerProcess], Sequence[int]]] = {
    f"none, for {HELD_SECONDS:g} s": wait,
    "4 requests of 100,000 actions": lambda server: send_many_actions(server, 100_000),
    "4 requests of 1,000,000 actions": lambda server: send_many_actions(server, 1_000_000),
    f"{SLOW_CONNECTIONS:,} slow connections": hold_slow_connections,
    f"8 pages of {len(BOMB)} bytes, 400 MiB when decoded": open_bombs_of_a_site,
}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=3)
    tries = parser.parse_args().tries
    rows = []
    for name, attack in ATTACKS.items():
        watches, answers = [], Counter[int]()
        for _ in range(tries):
            with serving(*SETTINGS) as server:
                server.post(["warm"], ["<python>print(1)</python>"]).raise_for_status()
                with Watch(server) as watch:
                    answers.update(attack(server))
            watches.append(watch)
        told = ", ".join(f"{number} × {status}" for status, number in sorted(answers.items())) or "-"
        slowest, added = max(watch.seconds for watch in watches), max(watch.added_bytes for watch in watches)
        rows.append((name, told, f"{slowest * 1000:.0f}", f"{added / 1e6:.0f}"))
    print(table(("attack", "answers", "slowest /health, ms", "memory added, MB"), rows))


if __name__ == "__main__":
    main()
