"""The pods of the chart's store as a cluster, as processes on this machine, each with a loopback address of its own."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
import redis.exceptions

from support.charts import TEAM
from turnmill.trajectories.embedded import find_server

FILES = TEAM / "files"
USERS = ("clean-up", "tool-server", "trainer")
PORT = 6379
START_SECONDS = 120.0
UNSHARE = ("unshare", "--pid", "--fork", "--kill-child")


class StorePod:
    """A pod of the store: its server, and the process that joins it to the others."""

    def __init__(self, folder: Path, number: int, arguments: list[str]) -> None:
        self.address = f"127.{os.getpid() % 250}.1.{number + 10}"
        self._folder = folder / str(number)
        self._number = number
        self._arguments = arguments
        self._addresses = folder / "addresses"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the pod's processes, with what its disk has."""
        for name in ("data", "tmp", "etc/store", "etc/store-password", "etc/store-users"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        self._addresses.mkdir(exist_ok=True)
        for file in [*(FILES / "store").iterdir(), *(FILES / "store-cluster").iterdir()]:
            (self._folder / "etc" / "store" / file.name).write_text(self._as_process(file.read_text()))
        for name in ("store-password/password", *(f"store-users/{user}" for user in USERS)):
            (self._folder / "etc" / name).write_text(f"of-{Path(name).name}")
        (self._addresses / str(self._number)).write_text(self.address)
        self._processes = [self.run("start.sh", "64mb"), self.run("join.sh", *self._arguments)]

    def run(self, script: str, *arguments: str, as_first: bool = False) -> subprocess.Popen[bytes]:
        """Start a script of the pod; `as_first` as the first process of a pid namespace, as in a container."""
        environment = os.environ | {"POD_IP": self.address, "NAME": "store", "HOSTNAME": f"store-{self._number}"}
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                [*(UNSHARE if as_first else ()), "sh", str(self._folder / "etc" / "store" / script), *arguments],
                env=environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """End the pod at once."""
        (self._addresses / str(self._number)).unlink(missing_ok=True)
        for process in self._processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes = []

    def lose_disk(self) -> None:
        """Delete what the volume has."""
        subprocess.run(["rm", "-r", str(self._folder / "data")], check=True)

    @property
    def is_ready(self) -> bool:
        """Whether its readiness probe succeeds."""
        return self.run("ready-in-cluster.sh").wait() == 0

    @property
    def role(self) -> str:
        """`master` or `slave`, as the protocol has it; empty if it does not answer."""
        try:
            with redis.Redis(self.address, PORT, password="of-password", protocol=2) as client:
                return str(client.info("replication")["role"])
        except redis.exceptions.ConnectionError:
            return ""

    @property
    def log(self) -> str:
        """What its processes printed."""
        return (self._folder / "log").read_text(errors="replace")

    def _as_process(self, script: str) -> str:
        """Return a script or configuration with this pod's folders, address and peers."""
        script = re.sub(r"/(etc/store|tmp/|data\b)", rf"{self._folder}/\1", script)
        script = script.replace('getent ahosts "$NAME-$1.$NAME" |', f'cat "{self._addresses}/$1" |')
        script = script.replace("port 6379", f"port 6379\nbind {self.address}").replace("127.0.0.1", self.address)
        return script.replace("command -v valkey-server", f"echo {find_server()}")


@contextmanager
def chart_store_cluster(folder: Path, *, primaries: int = 3, replicas: int = 1) -> Iterator[list[StorePod]]:
    """Run the pods until they are ready."""
    num_pods = primaries * (1 + replicas)
    pods = [StorePod(folder, number, [str(num_pods), str(primaries)]) for number in range(num_pods)]
    try:
        for pod in pods:
            pod.start()
        wait_until(lambda: all(pod.is_ready for pod in pods), pods)
        yield pods
    finally:
        for pod in pods:
            pod.kill()


def wait_until(holds: Callable[[], bool], pods: list[StorePod]) -> None:
    """Wait for something, and show the pods' logs if it does not come."""
    deadline = time.monotonic() + START_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("\n".join(f"{pod.address} {pod.role}\n{pod.log[-1500:]}" for pod in pods))
        time.sleep(0.3)
