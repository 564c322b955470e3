"""Models by their names on a hub, which here is a server of this machine."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import model_servers

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
    print(download(sys.argv[1], "spec.model.path", lambda _: None, Path(sys.argv[2])))
except SettingsError as error:
    print(error)
"""


@pytest.fixture
def hub() -> Iterator[str]:
    with model_servers.hub("owner/small", COMMIT, FILES) as server:
        yield server.url


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
