"""`turnmill gateway` as a real process, and a vLLM server whose answers are scripted."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from support.gateway import bpe_tokenizer, ids_of
from support.programs import end
from turnmill.gateway.server import HttpServer

START_SECONDS = 120.0
STOP_SECONDS = 60.0


class ScriptedVllm:
    """Serves vLLM's endpoint for tokens in the running event loop; each answer comes after some seconds."""

    def __init__(self, script: Callable[[tuple[int, ...]], str], *, seconds: float = 0.0) -> None:
        """Take what returns an answer to a prompt's tokens."""
        self.prompts: list[tuple[int, ...]] = []
        """Prompts of all requests."""

        self.asked = asyncio.Event()
        """Set when a request is here."""

        self._script = script
        self._seconds = seconds
        route = Route("/inference/v1/generate", self._generate, methods=["POST"])
        self._server = HttpServer(Starlette(routes=[route]))
        self.url = self._server.url

    async def __aenter__(self) -> Self:
        self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Refuse further connections."""
        await self._server.close()

    async def _generate(self, request: Request) -> Response:
        body = json.loads(await request.body())
        prompt = tuple(body["token_ids"])
        self.prompts.append(prompt)
        self.asked.set()
        await asyncio.sleep(self._seconds)
        ids = ids_of(self._script(prompt) + "<|im_end|>")[: body["sampling_params"]["max_tokens"]]
        log_probs = [{"logprob": -0.5} for _ in ids]
        return JSONResponse({"choices": [{"token_ids": ids, "logprobs": {"content": log_probs}}]})


class GatewayProcess:
    """One `turnmill gateway` with the tests' tokenizer."""

    def __init__(self, folder: Path, engine_url: str, *arguments: str) -> None:
        """Start it; its log and the tokenizer lie in a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        bpe_tokenizer().save_pretrained(folder / "model")
        self._log = folder / "gateway.log"
        command = [sys.executable, "-m", "turnmill.cli.main", "gateway", "--port", "0"]
        command += ["--engine-url", engine_url, "--model", str(folder / "model"), *arguments]
        variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        with self._log.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=variables)
        self.url, self.metrics_url = "", ""

    @property
    def log(self) -> str:
        """The log so far."""
        return self._log.read_text(errors="replace")

    async def ready(self) -> Self:
        """Wait until it serves."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            if found := re.search(r"Gateway ready url=(\S+)(?: metrics=(\S+))?", self.log):
                self.url, self.metrics_url = found[1], found[2] or ""
                return self
            await asyncio.sleep(0.02)
        self.close()
        raise AssertionError(f"The gateway is not ready:\n{self.log}")

    def workers(self) -> list[psutil.Process]:
        """Return the processes that serve, which are children of one that has imported what they need."""
        (parent,) = [
            child for child in psutil.Process(self.process.pid).children() if "forkserver" in " ".join(child.cmdline())
        ]
        children: list[psutil.Process] = parent.children()
        return children

    def stop(self) -> int:
        """Send SIGTERM and wait for the end; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)

    def close(self) -> None:
        """End it."""
        end(self.process, STOP_SECONDS)
