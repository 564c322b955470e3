"""`turnmill gateway`: a gateway in front of a vLLM server, for agents that are started elsewhere."""

import asyncio
import logging
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from turnmill.cli.extras import needs_extra
from turnmill.core.errors import SettingsError

log = logging.getLogger(__name__)


def gateway(
    engine_url: Annotated[str, typer.Option(help="A vLLM server, such as http://localhost:8000.")],
    model: Annotated[Path, typer.Option(help="Folder with the tokenizer of the model that it serves.")],
    model_name: Annotated[str, typer.Option(help="Name by which agents may ask for the model.")] = "policy",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one and logs it.")] = 8080,
    redis: Annotated[
        str | None,
        typer.Option(
            help="URL of the trajectory store, which replicas share; left out, one starts and goes with the gateway.",
            envvar="TURNMILL_REDIS",
        ),
    ] = None,
    run_name: Annotated[str, typer.Option(help="Name under which trajectories lie in the store.")] = "gateway",
    max_context_tokens: Annotated[int, typer.Option(help="Tokens of a prompt and its answer together.")] = 32_768,
    max_turns: Annotated[int | None, typer.Option(help="Answers per trajectory; left out, there is no limit.")] = None,
    tool_parser: Annotated[
        str | None, typer.Option(help="vLLM's parser of tool calls; left out, it is chosen by the chat template.")
    ] = None,
    reasoning_parser: Annotated[str | None, typer.Option(help="vLLM's parser of reasoning.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one answer may take.")] = 600.0,
    drain_seconds: Annotated[
        int, typer.Option(help="When it is stopped: seconds for which it waits for requests that are being answered.")
    ] = 30,
) -> None:
    """Serve a model to unchanged agents as OpenAI's and Anthropic's APIs, and record every token."""
    with needs_extra("training", "gateway"):
        from transformers import AutoTokenizer

        from turnmill.gateway.app import create_app
        from turnmill.gateway.parsing import create_parser
        from turnmill.gateway.rendering import ChatRenderer
        from turnmill.gateway.replicas import StoreTrajectories
        from turnmill.gateway.server import HttpServer
        from turnmill.gateway.trajectory import Model
        from turnmill.gateway.vllm_engine import VllmEngine
        from turnmill.trajectories.address import with_password
        from turnmill.trajectories.embedded import EmbeddedStore
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    except (OSError, ValueError) as error:
        raise SettingsError(f"--model {model} has no tokenizer: {error} Name a folder with one.") from error

    async def serve(url: str) -> None:
        engine = VllmEngine(engine_url, timeout_seconds=timeout)
        served = Model(
            model_name,
            engine,
            ChatRenderer(tokenizer),
            create_parser(tokenizer, tool_parser=tool_parser, reasoning_parser=reasoning_parser),
            frozenset({tokenizer.eos_token_id}),
            max_context_tokens,
        )
        trajectories = StoreTrajectories(served, url, run_name, max_turns=max_turns)
        try:
            server = HttpServer(create_app(trajectories), host=host, port=port, drain_seconds=drain_seconds)
        except OSError as error:
            raise SettingsError(
                f"--port {port} cannot be served on --host {host}: {error.strerror}. "
                "Choose another, or 0 for a free one."
            ) from error
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        server.start()
        log.info("Gateway ready at %s", server.url)
        await stopped.wait()
        await server.close()
        await trajectories.close()
        await engine.close()

    with ExitStack() as stack:
        asyncio.run(serve(with_password(redis) if redis else stack.enter_context(EmbeddedStore()).url))
