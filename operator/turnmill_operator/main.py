"""The command `turnmill-operator`."""

import asyncio
import logging
import os
import socket
import sys
from contextlib import AsyncExitStack
from typing import Annotated

import kopf
import typer

from turnmill import __version__
from turnmill.observability.logs import JsonFormatter
from turnmill_operator.api import Api, ApiError
from turnmill_operator.health import health_server
from turnmill_operator.operator_process import WORKERS, Operator, Settings, registry

log = logging.getLogger(__name__)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def main() -> int:
    """Run the operator until it is told to stop."""
    try:
        app(prog_name="turnmill-operator")
    except SystemExit as end:
        if isinstance(end.code, str):
            log.info(end.code)
            return 0
        return end.code or 0
    except ApiError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


@app.command(help="Turns AgentTrainingJobs into runs on Ray clusters.")
def _operator(
    namespace: Annotated[
        list[str] | None, typer.Option(help="Watch this namespace alone; may be repeated. Left out: all of them.")
    ] = None,
    own_namespace: Annotated[
        str, typer.Option(envvar="POD_NAMESPACE", help="Where the Lease of the acting replica lies.")
    ] = "default",
    identity: Annotated[
        str, typer.Option(envvar="POD_NAME", help="Name of this replica; left out, that of the machine and process.")
    ] = "",
    port: Annotated[
        int, typer.Option(envvar="TURNMILL_OPERATOR_PORT", help="Port of /healthz, /readyz and /metrics; 0 takes any.")
    ] = 8080,
    log_level: Annotated[str, typer.Option(envvar="TURNMILL_LOG_LEVEL", help="debug, info or warning.")] = "info",
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"turnmill-operator {__version__}")
        return
    _log_to_stderr(log_level)
    named = namespace or [part for part in os.environ.get("TURNMILL_OPERATOR_NAMESPACES", "").split(",") if part]
    settings = Settings(tuple(named), own_namespace, identity or f"{socket.gethostname()}-{os.getpid()}", port)
    asyncio.run(operate(settings))


async def operate(settings: Settings) -> None:
    """Run all parts of the operator; the end of one is the end of all."""
    async with AsyncExitStack() as stack:
        api = Api()
        stack.push_async_callback(api.close)
        operator = Operator(settings, api)
        port = await stack.enter_async_context(health_server(operator, settings.port))
        log.info("Operator started", extra={"namespaces": ",".join(settings.namespaces) or "all", "port": port})
        tasks = [
            asyncio.create_task(_kopf(operator), name="watches"),
            asyncio.create_task(operator.lease.run(), name="lease"),
            asyncio.create_task(operator.keep_in_sync(), name="listings"),
            asyncio.create_task(operator.ask_runs(), name="progress"),
            *(asyncio.create_task(operator.work(), name=f"worker {number}") for number in range(WORKERS)),
        ]
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in ended:
            log.info("Operator stops", extra={"because": task.get_name()})
            await task


async def _kopf(operator: Operator) -> None:
    """The watches; kopf ends on SIGTERM and SIGINT."""
    namespaces = operator.settings.namespaces
    await kopf.operator(registry=registry(operator), standalone=True, clusterwide=not namespaces, namespaces=namespaces)


def _log_to_stderr(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.terminator = ""
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("turnmill_operator").setLevel(level.upper())


if __name__ == "__main__":
    sys.exit(main())
