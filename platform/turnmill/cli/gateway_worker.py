"""Worker process of `turnmill gateway`."""

import asyncio
import logging
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from turnmill.cli.extras import needs_extra
from turnmill.core.errors import SettingsError
from turnmill.core.garbage import collect_rarely
from turnmill.core.http_connections import event_loop_factory, raise_open_files_limit
from turnmill.core.supervisor import OnReady
from turnmill.gateway.app import create_app
from turnmill.gateway.instrumentation import MeasuredApp, MeasuredEngine, count_turn, gateway_metrics, metrics_app
from turnmill.gateway.parsing import create_parser
from turnmill.gateway.picture_tokens import Processor
from turnmill.gateway.rendering import ChatRenderer
from turnmill.gateway.replicas import StoreTrajectories
from turnmill.gateway.server import HttpServer
from turnmill.gateway.trajectory import Model
from turnmill.gateway.vllm_engine import VllmEngine
from turnmill.observability import logs

log = logging.getLogger(__name__)

IMPORTS = (
    __name__,
    "transformers",
    "vllm.entrypoints.openai.chat_completion.protocol",
    "vllm.reasoning",
    "vllm.tool_parsers",
)
"""Modules that workers need, and their copies have from the beginning: their import takes ten seconds."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What a worker serves."""

    engine_url: str
    engine_key: str | None
    model: Path
    """Folder with the tokenizer."""

    model_name: str
    store_url: str
    run_name: str
    max_context_tokens: int
    max_turns: int | None
    tool_parser: str | None
    reasoning_parser: str | None
    timeout_seconds: float
    drain_seconds: int


def run_gateway(
    settings: GatewaySettings,
    listeners: Sequence[socket.socket],
    *,
    on_ready: OnReady,
    stop_when_readable: int | None = None,
) -> None:
    """Serve until a signal. Raises SettingsError for a model without a tokenizer and for unknown parsers."""
    logs.configure()
    raise_open_files_limit()
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(_serve(settings, listeners, on_ready, stop_when_readable))


async def _serve(
    settings: GatewaySettings, listeners: Sequence[socket.socket], on_ready: OnReady, stop_when_readable: int | None
) -> None:
    with needs_extra("training", "`turnmill gateway`"):
        from transformers import AutoTokenizer
    try:
        tokenizer = AutoTokenizer.from_pretrained(settings.model, local_files_only=True)
    except (OSError, ValueError) as error:
        raise SettingsError(f"--model {settings.model} has no tokenizer: {error} Name a folder with one.") from error
    metrics = gateway_metrics()
    renderer = ChatRenderer(tokenizer, _processor(settings.model))
    engine = VllmEngine(
        settings.engine_url,
        timeout_seconds=settings.timeout_seconds,
        key=settings.engine_key,
        image_id=renderer.image_id,
    )
    served = Model(
        settings.model_name,
        MeasuredEngine(engine, metrics),
        renderer,
        create_parser(tokenizer, tool_parser=settings.tool_parser, reasoning_parser=settings.reasoning_parser),
        frozenset({tokenizer.eos_token_id}),
        settings.max_context_tokens,
    )
    trajectories = StoreTrajectories(
        served,
        settings.store_url,
        settings.run_name,
        max_turns=settings.max_turns,
        on_recorded=partial(count_turn, metrics),
    )
    app = MeasuredApp(create_app(trajectories), metrics)
    servers = [HttpServer(app, listeners[0], drain_seconds=settings.drain_seconds)]
    servers += [HttpServer(metrics_app(metrics), listener) for listener in listeners[1:]]
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    if stop_when_readable is not None:
        loop.add_reader(stop_when_readable, stopped.set)
    for server in servers:
        server.start()
    collect_rarely()
    on_ready([server.url for server in servers])
    await stopped.wait()
    if stop_when_readable is not None:
        loop.remove_reader(stop_when_readable)
    for server in servers:
        await server.close()
    await trajectories.close()
    await engine.close()


def _processor(model: Path) -> Processor | None:
    """Return the processor of a model that reads pictures; None for others, and where a package for it is missing."""
    from transformers import AutoProcessor, ProcessorMixin

    if not any((model / name).exists() for name in ("preprocessor_config.json", "processor_config.json")):
        return None
    try:
        processor = AutoProcessor.from_pretrained(model, local_files_only=True)
    except (ImportError, OSError, ValueError) as error:
        log.warning("Pictures are refused, as the model's processor cannot be loaded", extra={"error": str(error)})
        return None
    return processor if isinstance(processor, ProcessorMixin) else None
