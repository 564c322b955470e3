"""vLLM's own server of a model in a folder of this machine."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from turnmill.core.errors import RunFailedError
from turnmill.core.ports import free_port
from turnmill.evaluation.endpoint import Endpoint
from turnmill.observability.run_folder import RunFolder
from turnmill.runs.preparation import process_environment
from turnmill.runs.server_process import is_healthy, stop, tail

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
    port = free_port()
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
        _wait_until_healthy(process, f"http://127.0.0.1:{port}", folder, log_file)
        yield Endpoint(f"http://127.0.0.1:{port}/v1", NAME, key)
    finally:
        stop(process, STOP_SECONDS)


def _wait_until_healthy(process: "subprocess.Popen[bytes]", url: str, folder: RunFolder, log_file: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not is_healthy(url):
        if (exit_code := process.poll()) is not None:
            raise RunFailedError(
                f"vLLM did not start (exit code {exit_code}); see {log_file}. Change its settings with --vllm.\n"
                f"{tail(log_file, _TAIL_LINES)}",
                "engine",
            )
        if time.monotonic() > deadline:
            raise RunFailedError(f"vLLM did not answer within {START_SECONDS:g} s. See {log_file}.", "engine")
        folder.beat()
        time.sleep(WAIT_SECONDS)
