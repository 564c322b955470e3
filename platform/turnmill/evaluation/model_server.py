"""vLLM's own server of a model in a folder of this machine."""

import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from turnmill.core.errors import RunFailedError
from turnmill.evaluation.endpoint import Endpoint
from turnmill.observability.run_folder import RunFolder
from turnmill.runs.preparation import process_environment

START_SECONDS, STOP_SECONDS, WAIT_SECONDS = 3600.0, 20.0, 0.2
NAME = "policy"
_TAIL_LINES = 8

_CPU = (
    *("--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", str(256 * 2**20)),
    # vLLM rewinds the generator of a seeded request whose prompt was read in part, which torch's for CPUs cannot.
    "--no-enable-chunked-prefill",
)


@contextmanager
def serve_model(model: Path, folder: RunFolder, device: str, arguments: Sequence[str]) -> Iterator[Endpoint]:
    """Serve a model while the context lasts; further arguments of `vllm serve` override those here.

    Raises RunFailedError if the server does not start.
    """
    # Others on this machine must not use the model, or see what it is asked.
    key = secrets.token_hex(16)
    port = _free_port()
    log_file = folder.logs / "vllm.log"
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
        *("--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port)),
        # Otherwise the model's own defaults would change what this run's settings leave out, such as penalties.
        *("--generation-config", "vllm", "--disable-uvicorn-access-log"),
        *(_CPU if device == "cpu" else ()),
        *arguments,
    ]
    environment = os.environ | process_environment(device) | {"VLLM_API_KEY": key}
    # It would keep the engine in the server's process, which only verl's own can.
    environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    with log_file.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # The terminal's Ctrl-C is for the evaluation, which stops the server after its last request.
            start_new_session=True,
        )
    try:
        _wait_until_healthy(process, f"http://127.0.0.1:{port}/health", folder, log_file)
        yield Endpoint(f"http://127.0.0.1:{port}/v1", NAME, key)
    finally:
        _stop(process)


def _wait_until_healthy(process: "subprocess.Popen[bytes]", url: str, folder: RunFolder, log_file: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _is_healthy(url):
        if (exit_code := process.poll()) is not None:
            tail = "\n".join(log_file.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
            raise RunFailedError(
                f"vLLM did not start (exit code {exit_code}); see {log_file}. Change its settings with --vllm.\n{tail}",
                "engine",
            )
        if time.monotonic() > deadline:
            raise RunFailedError(f"vLLM did not answer within {START_SECONDS:g} s. See {log_file}.", "engine")
        folder.beat()
        time.sleep(WAIT_SECONDS)


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
