"""What hostile requests cost a tool server: how long `/health` takes beside them, and how much memory they take.

OMP_NUM_THREADS=1 .venv/bin/python benchmarks/hostile_requests.py [--tries 3]
"""

import argparse
import gzip
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil
from runs import table
from tool_servers import serving

from support.server_process import ServerProcess

BOMB = gzip.compress(gzip.compress(gzip.compress(bytes(400 * 1024**2))))
SLOW_CONNECTIONS, SLOW_SECONDS = 1000, 5.0
SETTINGS = (
    *("--tool_type", "text_browser,python_code", "--max_concurrent_requests", "256"),
    *("--set", "BROWSER_PRIVATE_ADDRESSES=allow"),
)


@dataclass
class Watch:
    """Asks `/health` again and again while the context lasts."""

    server: ServerProcess
    seconds: list[float] = field(default_factory=list)
    added_bytes: int = 0

    def __enter__(self) -> "Watch":
        self._before, self._over = self._memory(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _memory(self) -> int:
        return int(psutil.Process(self.server.process.pid).memory_info().rss)

    def _run(self) -> None:
        while not self._over.is_set():
            started = time.monotonic()
            self.server.http.get("/health").raise_for_status()
            self.seconds.append(time.monotonic() - started)
            self.added_bytes = max(self.added_bytes, self._memory() - self._before)
            self._over.wait(0.01)


def many_actions(server: ServerProcess, number: int) -> Counter[int]:
    """Send four requests with so many actions each, at once."""
    body = json.dumps({"trajectory_ids": ["t"] * number, "actions": [""] * number}).encode()
    with ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(server.http.post, "/get_observation", content=body) for _ in range(4)]
        return Counter(each.result().status_code for each in sent)


def slow_connections(server: ServerProcess) -> Counter[int]:
    """Hold connections on which a request has begun."""
    head = b"POST /get_observation HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{"
    with ExitStack() as stack:
        for number in range(SLOW_CONNECTIONS):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.http.base_url.port)))
            connection.sendall(head if number % 2 else head[:20])
        time.sleep(SLOW_SECONDS)
    return Counter()


def nested_bomb(server: ServerProcess) -> Counter[int]:
    """Have eight trajectories open a page of a few hundred bytes that becomes 400 MiB."""
    with site() as url, ThreadPoolExecutor(8) as pool:
        action = f"<think>so</think>\n```goto [{url}]```"
        sent = [pool.submit(server.post, [f"t{n}"], [action], extra_fields=[{"url": url}]) for n in range(8)]
        return Counter(each.result().status_code for each in sent)


@contextmanager
def site() -> Iterator[str]:
    """Serve the page."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            for name, value in (
                ("Content-Type", "text/html"),
                ("Content-Encoding", "gzip, gzip, gzip"),
                ("Content-Length", str(len(BOMB))),
            ):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(BOMB)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


ATTACKS: dict[str, Callable[[ServerProcess], Counter[int]]] = {
    "none, for 5 s": lambda server: time.sleep(5) or Counter(),
    "4 requests of 100,000 actions": lambda server: many_actions(server, 100_000),
    "4 requests of 1,000,000 actions": lambda server: many_actions(server, 1_000_000),
    "1,000 slow connections": slow_connections,
    f"8 pages of {len(BOMB)} bytes, 400 MiB when decoded": nested_bomb,
}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=3)
    tries = parser.parse_args().tries
    rows = []
    for name, attack in ATTACKS.items():
        slowest, added, answers = [], [], Counter[int]()
        for _ in range(tries):
            with serving(*SETTINGS) as server:
                server.post(["warm"], ["<python>print(1)</python>"]).raise_for_status()
                with Watch(server) as watch:
                    answers += attack(server)
            slowest.append(max(watch.seconds))
            added.append(watch.added_bytes)
        told = ", ".join(f"{number} × {status}" for status, number in sorted(answers.items())) or "-"
        rows.append((name, told, f"{max(slowest) * 1000:.0f}", f"{max(added) / 1e6:.0f}"))
    print(table(("attack", "answers", "slowest /health, ms", "memory added, MB"), rows))


if __name__ == "__main__":
    main()
