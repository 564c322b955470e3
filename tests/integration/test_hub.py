"""Models by their names on a hub, which here is a server of this machine."""

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

COMMIT = "0123456789" * 4
FILES = {
    "config.json": b"{}",
    "tokenizer_config.json": b"{}",
    "model.safetensors": b"weights",
    "README.md": b"not needed",
}

DOWNLOAD = """
import sys
from pathlib import Path
from turnmill.core.errors import SettingsError
from turnmill.runs.preparation import download
try:
    print(download(sys.argv[1], lambda _: None, Path(sys.argv[2])))
except SettingsError as error:
    print(error)
"""


class Hub(http.server.BaseHTTPRequestHandler):
    """The parts of the hub's API that a download needs, for the model `owner/small`."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        name = self.path.rpartition("/")[2]
        if self.path.startswith("/api/models/owner/small/tree/"):
            tree = [{"type": "file", "path": name, "size": len(FILES[name]), "oid": name} for name in FILES]
            self._send(json.dumps(tree).encode(), "tree", with_body)
        elif self.path.startswith("/api/models/owner/small"):
            siblings = [{"rfilename": name} for name in FILES]
            self._send(
                json.dumps({"id": "owner/small", "sha": COMMIT, "siblings": siblings}).encode(), "api", with_body
            )
        elif self.path.startswith("/owner/small/resolve/") and name in FILES:
            self._send(FILES[name], name, with_body)
        else:
            self.send_error(404)

    def _send(self, content: bytes, tag: str, with_body: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{tag}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def download(name: str, cache: Path, endpoint: str) -> str:
    variables = {"HF_ENDPOINT": endpoint, "PYTHONPATH": ":".join(sys.path), "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-c", DOWNLOAD, name, str(cache)]
    return subprocess.run(
        command, env=variables, capture_output=True, text=True, check=True, timeout=300
    ).stdout.strip()


def test_a_model_is_downloaded_with_its_tokenizer_and_weights(hub: str, tmp_path: Path):
    folder = Path(download("owner/small", tmp_path, hub))

    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
        name: content for name, content in FILES.items() if name != "README.md"
    }


def test_a_model_that_the_hub_does_not_have_is_refused_with_the_way_out(hub: str, tmp_path: Path):
    message = download("owner/other", tmp_path, hub)

    assert message.startswith("spec.model.path: 'owner/other' is no folder, and could not be downloaded (")
    assert message.endswith("or fetch it with `hf download owner/other` where the network is.")


def test_a_downloaded_model_is_found_again_without_the_hub(hub: str, tmp_path: Path):
    folder = download("owner/small", tmp_path, hub)

    assert download("owner/small", tmp_path, "http://127.0.0.1:1") == folder
