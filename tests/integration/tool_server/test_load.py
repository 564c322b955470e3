"""What hostile requests may cost a server: a second of work before `/health` answers, and 100 MB."""

import gzip
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil
import pytest

from support.server_process import NewServer, ServerProcess

pytestmark = pytest.mark.slow

MAX_WORK_SECONDS, MAX_BYTES = 1.0, 100e6


class Bomb(BaseHTTPRequestHandler):
    body = gzip.compress(gzip.compress(gzip.compress(bytes(400 * 1024**2))))

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Encoding", "gzip, gzip, gzip")
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def bomb_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Bomb) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{site.server_port}/"
        site.shutdown()


@pytest.fixture
def server(new_server: NewServer) -> ServerProcess:
    settings = ("--set", "BROWSER_PRIVATE_ADDRESSES=allow")
    server = new_server("--tool_type", "text_browser,trial", "--max_concurrent_requests", "256", *settings)
    server.observe("count")
    return server


def memory(server: ServerProcess) -> int:
    return psutil.Process(server.process.pid).memory_info().rss


def work(server: ServerProcess) -> float:
    """CPU seconds of the server so far: on a busy machine a second on the clock says nothing about the server."""
    times = psutil.Process(server.process.pid).cpu_times()
    return times.user + times.system


class Watch:
    """Asks `/health` all the time; keeps the most work of the server before an answer, and the most memory."""

    def __init__(self, server: ServerProcess) -> None:
        self.server, self.before = server, memory(server)
        self.work_seconds, self.bytes = 0.0, 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.is_set():
            before = work(self.server)
            assert self.server.http.get("/health").status_code == 200
            self.work_seconds = max(self.work_seconds, work(self.server) - before)
            self.bytes = max(self.bytes, memory(self.server) - self.before)
            self._over.wait(0.01)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def check(self) -> None:
        assert self.work_seconds <= MAX_WORK_SECONDS
        assert self.bytes <= MAX_BYTES


@pytest.mark.parametrize("num_actions", [100_000, 1_000_000])
def test_health_answers_beside_very_many_actions(server: ServerProcess, num_actions: int):
    body = json.dumps({"trajectory_ids": ["t"] * num_actions, "actions": [""] * num_actions}).encode()
    with Watch(server) as watch, ThreadPoolExecutor(4) as pool:
        posts = [pool.submit(server.http.post, "/get_observation", content=body) for _ in range(4)]
        assert {post.result().status_code for post in posts} == {422}
    watch.check()


def test_health_answers_beside_slow_connections(server: ServerProcess):
    address = ("127.0.0.1", server.http.base_url.port)
    head = b"POST /get_observation HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n"
    with ExitStack() as stack, Watch(server) as watch:
        for number in range(1000):
            slow = stack.enter_context(socket.create_connection(address))
            slow.sendall(head + b"{" if number % 2 else head[:20])
        for _ in range(100):
            assert server.http.get("/health").status_code == 200
    watch.check()


def test_health_answers_beside_a_nested_bomb(server: ServerProcess, bomb_url: str):
    with Watch(server) as watch, ThreadPoolExecutor(8) as pool:
        action = f"<think>so</think>\n```goto [{bomb_url}]```"
        extra = {"url": bomb_url}
        answers = [pool.submit(server.post, [f"t{n}"], [action], extra_fields=[extra]) for n in range(8)]
        assert {answer.result().status_code for answer in answers} <= {200, 503}
    watch.check()
