"""What a turn costs at the gateway, by the length of the conversation; beside it the servers of others.

.venv/bin/python benchmarks/gateway_cost.py --verifiers PYTHON --rllm PYTHON [--sizes 128x8 32x128] [--at-once 32]

PYTHON is one of a virtual environment with `verifiers==0.4.0`, and with `rllm-model-gateway==0.1.0`; what is left out
is not measured. All ask the same engine, which answers with canned tokens at once, for a call of a function; the client
sends its result back, as an agent with the `openai` package does. Processor time is that of the server and all its
processes, its store included; client and engine are not counted. rLLM's gateway does another job: it forwards the
messages, so that templates, tokens and calls are the engine's work, and keeps what passes in SQLite.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import rollout_cost
from pydantic_core import from_json, to_json
from runs import table
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from support.gateway_process import GatewayProcess
from turnmill.core.ports import free_port
from turnmill.gateway.server import HttpServer
from turnmill.trajectories.embedded import EmbeddedStore

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Returns a page.",
            "parameters": {"type": "object", "properties": {"name": {"type": "string"}}},
        },
    }
]


def write_model(folder: Path) -> None:
    """Write a tokenizer, and the answers of the engine."""
    from transformers import AutoTokenizer

    rollout_cost.write_model(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    rollout_cost.like_qwen3(tokenizer)
    tokenizer.save_pretrained(folder / "model")
    texts = [tokenizer.decode(ids) for ids in json.loads((folder / "canned.json").read_text())[0]["calls"]]
    (folder / "texts.json").write_text(json.dumps(texts))
    (folder / "answers.json").write_text(
        json.dumps([tokenizer.encode(text, add_special_tokens=False) for text in texts])
    )


async def serve_engine(folder: Path) -> None:
    """Serve the engine; prints its address."""
    answers = json.loads((folder / "answers.json").read_text())
    bodies = [
        to_json(
            {
                "request_id": str(number),
                "choices": [
                    {
                        "index": 0,
                        "token_ids": ids,
                        "finish_reason": "stop",
                        "logprobs": {"content": [{"token": f"token_id:{token}", "logprob": -0.5} for token in ids]},
                    }
                ],
            }
        )
        for number, ids in enumerate(answers)
    ]

    texts = json.loads((folder / "texts.json").read_text())

    async def generate(request: Request) -> Response:
        prompt = from_json(await request.body())["token_ids"]
        return Response(bodies[len(prompt) % len(bodies)], media_type="application/json")

    async def chat(request: Request) -> Response:
        body = await request.body()
        number = len(body) % len(answers)
        return Response(chat_completion(texts[number], answers[number], len(body) // 4), media_type="application/json")

    async def health(request: Request) -> Response:
        return Response("")

    routes = [
        Route("/inference/v1/generate", generate, methods=["POST"]),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/health", health),
    ]
    server = HttpServer(Starlette(routes=routes))
    server.start()
    print(server.url, flush=True)
    await asyncio.Event().wait()


def chat_completion(text: str, ids: Sequence[int], prompt_tokens: int) -> bytes:
    """Return an answer of vLLM that calls a function, with the tokens that `return_token_ids` asks for."""
    call = from_json(text.partition("<tool_call>")[2].partition("</tool_call>")[0])
    function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
    content = [{"token": f"token_id:{token}", "logprob": -0.5, "bytes": None, "top_logprobs": []} for token in ids]
    choice = {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"call_{prompt_tokens}", "type": "function", "function": function}],
        },
        "logprobs": {"content": content},
        "finish_reason": "tool_calls",
        "token_ids": ids,
    }
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(ids), "total_tokens": prompt_tokens + len(ids)}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": "policy"}
    prompt = list(range(10_000, 10_000 + prompt_tokens))
    return to_json({**head, "choices": [choice], "usage": usage, "prompt_token_ids": prompt})


@dataclass(frozen=True)
class Server:
    """A server that is measured."""

    url: str
    keys: Sequence[str]
    processes: Sequence[psutil.Process]
    path: str = ""
    """Path before `/v1`, with a place for the key."""

    def cpu_seconds(self) -> float:
        """Return the processor time of its processes, which all live."""
        return sum(process.cpu_times().user + process.cpu_times().system for process in self.processes)


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and those below it."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


@asynccontextmanager
async def gateway(folder: Path, engine_url: str, keys: int) -> AsyncIterator[Server]:
    """Start the gateway with a store of its own."""
    with EmbeddedStore() as store, tempfile.TemporaryDirectory() as logs:
        process = GatewayProcess(
            Path(logs), engine_url, "--redis", store.url, "--model", str(folder / "model"),
            "--max-context-tokens", "1000000",
        )  # fmt: skip
        try:
            await process.ready()
            stores = [
                each
                for each in psutil.Process().children(recursive=True)
                if "redis" in each.name() or "valkey" in each.name()
            ]
            yield Server(process.url, [f"k{number}" for number in range(keys)], [*tree(process.process.pid), *stores])
        finally:
            process.close()


@asynccontextmanager
async def interception(python: str, folder: Path, engine_url: str, keys: int) -> AsyncIterator[Server]:
    """Start verifiers' server."""
    script = Path(__file__).with_name("gateway_cost_verifiers.py")
    command = [python, str(script), engine_url, str(folder / "model"), str(keys)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: ASYNC220 (it lives longer than its start)
        try:
            assert process.stdout is not None
            ready = json.loads(await asyncio.to_thread(process.stdout.readline))
            yield Server(ready["url"], ready["keys"], tree(process.pid))
        finally:
            process.terminate()


@asynccontextmanager
async def rllm_gateway(python: str, engine_url: str, keys: int) -> AsyncIterator[Server]:
    """Start rLLM's gateway with its default store."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        options = {"host": "127.0.0.1", "port": port, "worker": engine_url, "db-path": f"{folder}/traces.db"}
        command = [python, "-m", "rllm_model_gateway", *(f"--{name}={value}" for name, value in options.items())]
        command += ["--log-level", "WARNING"]
        with subprocess.Popen(command) as process:  # noqa: ASYNC220 (it lives longer than its start)
            try:
                url = f"http://127.0.0.1:{port}"
                async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(retries=10)) as client:
                    (await client.get(f"{url}/health", timeout=60)).raise_for_status()
                yield Server(url, [f"k{number}" for number in range(keys)], tree(process.pid), "/sessions/{key}")
            finally:
                process.terminate()


async def converse(client: httpx.AsyncClient, server: Server, key: str, turns: int, observation: str) -> None:
    """Hold a conversation in which every answer calls a function."""
    path = f"{server.path.format(key=key)}/v1/chat/completions"
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Which page says how a tool is called?"}]
    for turn in range(turns):
        body = to_json({"model": "policy", "messages": messages, "tools": TOOLS})
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        response = await client.post(path, content=body, headers=headers)
        response.raise_for_status()
        message = from_json(response.content)["choices"][0]["message"]
        assert message["tool_calls"], message
        messages += [
            message,
            {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": f"{turn} {observation}"},
        ]


async def turns_per_second(server: Server, turns: int, conversations: int, observation: str, *, at_once: int) -> float:
    """Return turns per second of processor time, with some conversations at a time, whatever their length."""
    limit = asyncio.Semaphore(at_once)

    async def hold(client: httpx.AsyncClient, key: str) -> None:
        async with limit:
            await converse(client, server, key, turns, observation)

    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        await converse(client, server, server.keys[0], 2, "warm")
        before = server.cpu_seconds()
        await asyncio.gather(*(hold(client, key) for key in server.keys[1 : conversations + 1]))
        return conversations * turns / (server.cpu_seconds() - before)


async def measure(arguments: argparse.Namespace, folder: Path) -> list[list[str]]:
    """Return the rows of the table."""
    observation = (folder / "observation.txt").read_text()
    command = [sys.executable, __file__, "--engine", str(folder)]
    rates: dict[tuple[str, int], list[float]] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as engine:  # noqa: ASYNC220 (as above)
        try:
            assert engine.stdout is not None
            engine_url = (await asyncio.to_thread(engine.stdout.readline)).strip()
            for _ in range(arguments.rounds):
                for conversations, turns in arguments.sizes:
                    starts = {"turnmill gateway": gateway(folder, engine_url, conversations + 1)}
                    if arguments.verifiers:
                        starts["verifiers 0.4.0"] = interception(
                            arguments.verifiers, folder, engine_url, conversations + 1
                        )
                    if arguments.rllm:
                        starts["rLLM's gateway 0.1.0"] = rllm_gateway(arguments.rllm, engine_url, conversations + 1)
                    for name, start in starts.items():
                        async with start as server:
                            rate = await turns_per_second(
                                server, turns, conversations, observation, at_once=arguments.at_once
                            )
                        rates.setdefault((name, turns), []).append(rate)
                        print(name, turns, f"{rate:.0f}", file=sys.stderr, flush=True)
        finally:
            engine.terminate()
    medians = {key: statistics.median(values) for key, values in rates.items()}
    (_, short), (_, long) = arguments.sizes
    return [
        [name, f"{medians[name, short]:.0f}", f"{medians[name, long]:.0f}",
         f"{medians[name, short] / medians[name, long]:.2f}"]
        for name in dict.fromkeys(name for name, _ in medians)
    ]  # fmt: skip


def size(text: str) -> tuple[int, int]:
    """Return a number of conversations and their turns."""
    conversations, turns = map(int, text.split("x"))
    return conversations, turns


def main() -> None:
    """Measure, or serve the engine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verifiers", help="a Python with verifiers==0.4.0")
    parser.add_argument("--rllm", help="a Python with rllm-model-gateway==0.1.0")
    parser.add_argument("--sizes", nargs=2, type=size, default=[(128, 8), (32, 128)], help="conversations x turns")
    parser.add_argument("--at-once", type=int, default=32, help="conversations that are held at the same time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine is not None:
        asyncio.run(serve_engine(arguments.engine))
        return
    with tempfile.TemporaryDirectory() as name:
        write_model(Path(name))
        rows = asyncio.run(measure(arguments, Path(name)))
    (_, short), (_, long) = arguments.sizes
    heads = ["server", f"turns per CPU s, {short} turns", f"{long} turns", "ratio"]
    print(table(heads, rows))


if __name__ == "__main__":
    main()
