"""vLLM's own server of a model, as a process of this machine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from turnmill.core import forking
from turnmill.core.errors import RunFailedError
from turnmill.runs.preparation import process_environment
from turnmill.runs.server_process import is_healthy, stop, tail

START_SECONDS, STOP_SECONDS, WAIT_SECONDS = 3600.0, 20.0, 0.2
_TAIL_LINES = 8

_CPU = (
    *("--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", str(256 * 2**20)),
    # vLLM rewinds the generator of a seeded request whose prompt was read in part, which torch's for CPUs cannot.
    "--no-enable-chunked-prefill",
)


class ModelServer:
    """A server of one model; whoever has not its key can neither use the model nor see what it is asked."""

    def __init__(
        self, model: Path, name: str, *, host: str, port: int, key: str, device: str, arguments: Sequence[str],
        log_file: Path,
    ) -> None:  # fmt: skip
        """`arguments` of `vllm serve` override those that are given here."""
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._log_file = log_file
        self._device = device
        self._key = key
        self._command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
            *("--served-model-name", name, "--host", host, "--port", str(port)),
            # Otherwise the model's own defaults would change what a request leaves out, such as penalties.
            *("--generation-config", "vllm", "--disable-uvicorn-access-log"),
            *(_CPU if device == "cpu" else ()),
            *arguments,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, variables: Mapping[str, str] | None = None) -> None:
        """Start the process, with further environment variables; it ends with the thread that calls this."""
        environment = os.environ | process_environment(self._device) | {"VLLM_API_KEY": self._key, **(variables or {})}
        # It would keep the engine in the server's process, which only verl's own can.
        environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
        with self._log_file.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # The terminal's Ctrl-C is for the run, which stops the server after its last request.
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def wait_until_ready(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Return once it answers; `meanwhile` is called now and then. Raises RunFailedError if it does not start."""
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while not is_healthy(self.url):
            if (exit_code := self._process.poll()) is not None:
                raise RunFailedError(
                    f"vLLM did not start (exit code {exit_code}); see {self._log_file}. Change its arguments.\n"
                    f"{tail(self._log_file, _TAIL_LINES)}",
                    "engine",
                )
            if time.monotonic() > deadline:
                raise RunFailedError(f"vLLM did not answer within {START_SECONDS:g} s. See {self._log_file}.", "engine")
            meanwhile()
            time.sleep(WAIT_SECONDS)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            stop(self._process, STOP_SECONDS)


def _end_with_parent() -> None:
    forking.die_with_parent(signal.SIGTERM)
