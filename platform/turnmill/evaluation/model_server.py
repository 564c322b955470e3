"""vLLM's own server of the model that is evaluated."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from turnmill.core.ports import free_port
from turnmill.evaluation.endpoint import Endpoint
from turnmill.observability.run_folder import RunFolder
from turnmill.runs.model_server import ModelServer

NAME = "policy"


@contextmanager
def serve_model(model: Path, folder: RunFolder, device: str, arguments: Sequence[str]) -> Iterator[Endpoint]:
    """Serve a model while the context lasts; further arguments of `vllm serve` override those here.

    Raises RunFailedError if the server does not start.
    """
    key, log_file = secrets.token_hex(16), folder.logs / "vllm.log"
    server = ModelServer(
        model, NAME, host="127.0.0.1", port=free_port(), key=key, device=device, arguments=arguments, log_file=log_file
    )
    server.start()
    try:
        server.wait_until_ready(folder.beat)
        yield Endpoint(f"{server.url}/v1", NAME, key)
    finally:
        server.stop()
