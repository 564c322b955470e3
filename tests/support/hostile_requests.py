"""Requests to a tool server that cost more than others, and what the server does meanwhile."""

import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil

from support.server_process import ServerProcess

SLOW_CONNECTIONS = 1000
BOMB = gzip.compress(gzip.compress(gzip.compress(bytes(400 * 1024**2))))
"""A page of a few hundred bytes that becomes 400 MiB."""


class Watch:
    """Asks `/health` all the time; keeps its answers' times, the server's work before them, and its most memory."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._process = psutil.Process(server.process.pid)
        self._memory_before = self._memory()
        self.seconds = 0.0
        """Longest time until an answer."""

        self.work_seconds = 0.0
        """Most CPU time of the server before an answer: on a busy machine the clock says nothing about the server."""

        self.added_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _memory(self) -> int:
        return int(self._process.memory_info().rss)

    def _work(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def _run(self) -> None:
        while not self._over.is_set():
            work, asked = self._work(), time.monotonic()
            assert self._server.http.get("/health").status_code == 200
            self.seconds = max(self.seconds, time.monotonic() - asked)
            self.work_seconds = max(self.work_seconds, self._work() - work)
            self.added_bytes = max(self.added_bytes, self._memory() - self._memory_before)
            self._over.wait(0.01)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def send_many_actions(server: ServerProcess, number: int) -> list[int]:
    """Send four requests with so many actions each, at once; return the status codes of their answers."""
    body = json.dumps({"trajectory_ids": ["t"] * number, "actions": [""] * number}).encode()
    with ThreadPoolExecutor(4) as pool:
        posts = [pool.submit(server.http.post, "/get_observation", content=body) for _ in range(4)]
        return [post.result().status_code for post in posts]


@contextmanager
def slow_connections(server: ServerProcess) -> Iterator[None]:
    """Hold connections on which a request has begun, half of them in its body."""
    address = ("127.0.0.1", server.http.base_url.port)
    head = b"POST /get_observation HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n"
    with ExitStack() as stack:
        for number in range(SLOW_CONNECTIONS):
            slow = stack.enter_context(socket.create_connection(address))
            slow.sendall(head + b"{" if number % 2 else head[:20])
        yield


def open_bombs(server: ServerProcess, url: str) -> list[int]:
    """Have eight trajectories open a page at once; return the status codes of the answers."""
    action = f"<think>so</think>\n```goto [{url}]```"
    with ThreadPoolExecutor(8) as pool:
        posts = [pool.submit(server.post, [f"t{n}"], [action], extra_fields=[{"url": url}]) for n in range(8)]
        return [post.result().status_code for post in posts]


@contextmanager
def bomb_site() -> Iterator[str]:
    """Serve the bomb; yields its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{site.server_port}/"
        site.shutdown()


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Encoding", "gzip, gzip, gzip")
        self.send_header("Content-Length", str(len(BOMB)))
        self.end_headers()
        self.wfile.write(BOMB)

    def log_message(self, format: str, *arguments: object) -> None:
        pass
