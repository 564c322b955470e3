"""Commands in pods and forwarded ports, with the official client over the API server's WebSocket protocol."""

import hashlib
import io
import os
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from kubernetes import client

from support.pod_streams import pod_streams
from turnmill.cli.cluster.api import Cluster, ClusterError
from turnmill.cli.cluster.pods import Container
from turnmill.cli.cluster.port_forward import forwarded_port
from turnmill.cli.cluster.streams import show, unpack

POD = Container("pod", "ray")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with pod_streams() as url:
        yield Cluster(client.ApiClient(client.Configuration(host=url)), "team-a")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "logs").mkdir()
    (folder / "logs" / "launch.log").write_text("the run has begun\n")
    (folder / "checkpoints" / "weights").write_bytes(os.urandom(1000))
    (folder / "big").write_bytes(os.urandom(5 << 20))
    link = tmp_path / "link"
    link.symlink_to(folder)
    return link


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_run_folder_behind_a_link_is_unpacked_byte_by_byte_without_what_is_excluded(
    cluster: Cluster, run: Path, tmp_path: Path
):
    count = unpack(cluster, POD, str(run), tmp_path / "here", ["checkpoints"])

    assert count == 2
    assert digest(tmp_path / "here" / "big") == digest(run / "big")
    assert (tmp_path / "here" / "logs" / "launch.log").read_text() == "the run has begun\n"
    assert not (tmp_path / "here" / "checkpoints").exists()


def test_a_missing_run_folder_is_told_in_the_words_of_tar(cluster: Cluster, tmp_path: Path):
    with pytest.raises(ClusterError, match=r"/nowhere cannot be copied from pod pod: .*No such file or directory"):
        unpack(cluster, POD, "/nowhere", tmp_path / "here", [])


def test_output_is_shown_whole_and_a_failure_is_told_with_what_the_command_said(cluster: Cluster):
    output = io.BytesIO()

    assert show(cluster, POD, ["seq", "100000"], output) == 0
    assert output.getvalue() == "".join(f"{number}\n" for number in range(1, 100_001)).encode()
    with pytest.raises(ClusterError, match="sh in pod pod: it broke"):
        show(cluster, POD, ["sh", "-c", "echo it broke >&2; exit 3"], output)


def test_a_forwarded_port_serves_several_connections_at_once(cluster: Cluster, run: Path):
    handler = partial(SimpleHTTPRequestHandler, directory=str(run.resolve()))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as site:
        Thread(target=site.serve_forever, daemon=True).start()
        port = site.server_address[1]
        with forwarded_port(cluster, "pod", port, host="127.0.0.1", local_port=0) as local:
            url = f"http://127.0.0.1:{local}/big"
            with ThreadPoolExecutor(4) as pool:
                bodies = list(pool.map(lambda _: urllib.request.urlopen(url, timeout=120).read(), range(4)))
        site.shutdown()

    assert {hashlib.sha256(body).hexdigest() for body in bodies} == {digest(run / "big")}
