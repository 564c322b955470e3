"""`turnmill gateway`: a gateway in front of a vLLM server, for agents that are started elsewhere."""

import logging
import multiprocessing
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from turnmill.cli.extras import needs_extra
from turnmill.core.errors import SettingsError
from turnmill.core.http_connections import listen
from turnmill.core.supervisor import Supervisor
from turnmill.observability import logs
from turnmill.observability.worker_metrics import metrics_of_workers

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")

log = logging.getLogger(__name__)


def gateway(
    engine_url: Annotated[str, typer.Option(help="A vLLM server, such as http://localhost:8000.")],
    model: Annotated[Path, typer.Option(help="Folder with the tokenizer of the model that it serves.")],
    engine_key_file: Annotated[
        Path | None, typer.Option(help="File with the API key of the vLLM server, if it asks for one.")
    ] = None,
    model_name: Annotated[str, typer.Option(help="Name by which agents may ask for the model.")] = "policy",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one and logs it.")] = 8080,
    metrics_port: Annotated[
        int | None, typer.Option(help="Port for Prometheus, with /metrics alone; left out, there are no metrics.")
    ] = None,
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
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that serve on this port; one that ends is replaced.")
    ] = 1,
    drain_seconds: Annotated[
        int, typer.Option(help="When it is stopped: seconds for which it waits for requests that are being answered.")
    ] = 30,
) -> None:
    """Serve a model to unchanged agents as OpenAI's and Anthropic's APIs, and record every token."""
    with needs_extra("training", "`turnmill gateway`"):
        from turnmill.cli import gateway_worker
        from turnmill.trajectories.address import with_password
        from turnmill.trajectories.embedded import EmbeddedStore
    logs.configure()
    if not any((model / name).is_file() for name in TOKENIZER_FILES):
        raise SettingsError(f"--model {model} has no tokenizer: name a folder with {' or '.join(TOKENIZER_FILES)}.")
    with ExitStack() as stack:
        listeners = [stack.enter_context(listen(host, port))]
        if metrics_port is not None:
            listeners.append(stack.enter_context(listen(host, metrics_port, "--metrics-port")))
            stack.enter_context(metrics_of_workers())
        settings = gateway_worker.GatewaySettings(
            engine_url=engine_url,
            engine_key=None if engine_key_file is None else _read_key(engine_key_file),
            model=model,
            model_name=model_name,
            store_url=with_password(redis) if redis else stack.enter_context(EmbeddedStore()).url,
            run_name=run_name,
            max_context_tokens=max_context_tokens,
            max_turns=max_turns,
            tool_parser=tool_parser,
            reasoning_parser=reasoning_parser,
            timeout_seconds=timeout,
            drain_seconds=drain_seconds,
        )
        multiprocessing.set_forkserver_preload(list(gateway_worker.IMPORTS))
        Supervisor(
            partial(gateway_worker.run_gateway, settings),
            listeners,
            num_workers=workers,
            grace_seconds=drain_seconds,
            on_ready=partial(_log_ready, workers),
            name="gateway-worker",
            start_method="forkserver",
        ).run()


def _read_key(path: Path) -> str:
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise SettingsError(f"--engine-key-file {path} cannot be read: {error}") from error
    if not (key.isascii() and key.isprintable() and key):
        raise SettingsError(
            f"--engine-key-file {path} has no key: it must hold printable ASCII characters in one line."
        )
    return key


def _log_ready(workers: int, urls: object) -> None:
    assert isinstance(urls, list)
    metrics = {"metrics": f"{urls[1]}/metrics"} if len(urls) > 1 else {}
    log.info("Gateway ready", extra={"url": urls[0], **metrics, "workers": workers})
