"""Network faults between a client and a server, injected by toxiproxy-server."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import httpx

from support.programs import find_program
from turnmill.core.ports import free_port

PROGRAM = "toxiproxy-server"
START_SECONDS = 10.0

Direction = Literal["upstream", "downstream"]
"""To the server, and back from it."""


def toxiproxy_server() -> Path | None:
    """Return the path of the program, or None if it is missing."""
    return find_program(PROGRAM)


class Link:
    """A proxy on a loopback port in front of a server, with faults on request."""

    def __init__(self, api: httpx.Client, name: str, port: int) -> None:
        self._api = api
        self._name = name
        self.port = port

    def delay(self, seconds: float) -> None:
        """Delay every answer."""
        self._add("latency", "downstream", {"latency": round(seconds * 1000)})

    def silence(self, direction: Direction) -> None:
        """Drop all data in one direction; connections stay open."""
        self._add("timeout", direction, {"timeout": 0})

    def reset(self) -> None:
        """Reset connections as soon as they carry data."""
        self._add("reset_peer", "downstream", {"timeout": 0})

    def close_after(self, num_bytes: int) -> None:
        """Close every connection after so many bytes of answers."""
        self._add("limit_data", "downstream", {"bytes": num_bytes})

    def cut(self) -> None:
        """Close all connections and refuse further ones."""
        self._post("", {"enabled": False})

    def restore(self) -> None:
        """Remove all faults."""
        for toxic in self._api.get(f"/proxies/{self._name}/toxics").raise_for_status().json():
            self._api.delete(f"/proxies/{self._name}/toxics/{toxic['name']}").raise_for_status()
        self._post("", {"enabled": True})

    @contextmanager
    def silent(self, direction: Direction) -> Iterator[None]:
        """Drop all data in one direction within a `with` block."""
        self.silence(direction)
        try:
            yield
        finally:
            self.restore()

    def _add(self, kind: str, direction: Direction, attributes: dict[str, Any]) -> None:
        self._post("/toxics", {"type": kind, "stream": direction, "attributes": attributes})

    def _post(self, path: str, body: dict[str, Any]) -> None:
        self._api.post(f"/proxies/{self._name}{path}", json=body).raise_for_status()


class Toxiproxy:
    """A toxiproxy-server with any number of links."""

    def __init__(self, program: Path) -> None:
        self._program = program
        self._num_links = 0

    def link(self, port: int, *, host: str = "127.0.0.1") -> Link:
        """Return a link to a port, by default of this machine."""
        self._num_links += 1
        name = f"link-{self._num_links}"
        body = {"name": name, "listen": "127.0.0.1:0", "upstream": f"{host}:{port}", "enabled": True}
        listen = self._api.post("/proxies", json=body).raise_for_status().json()["listen"]
        return Link(self._api, name, int(listen.rpartition(":")[2]))

    def __enter__(self) -> Self:
        port = free_port()
        self._process = subprocess.Popen(
            [self._program, "-host", "127.0.0.1", "-port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._api = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                self.__exit__(None, None, None)
                raise RuntimeError(f"{self._program} did not start within {START_SECONDS:g} s.")
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._api.close()
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            return self._api.get("/version").is_success
        except httpx.TransportError:
            return False
