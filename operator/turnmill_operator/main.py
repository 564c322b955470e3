"""The command `turnmill-operator`."""

import asyncio
import logging
import os
import socket
import sys
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Annotated

import kopf
import typer

from turnmill import __version__
from turnmill.core.errors import SettingsError
from turnmill.observability.logs import JsonFormatter
from turnmill_operator.api import ApiClient, ApiError
from turnmill_operator.gangs import DEFAULT_TIMEOUT
from turnmill_operator.health import health_server
from turnmill_operator.operator_process import WORKERS, Operator, Settings
from turnmill_operator.pod_rules import RIGHTS, parse_rules
from turnmill_operator.watches import build_registry

log = logging.getLogger(__name__)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def main() -> int:
    """Run the operator until it is stopped."""
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
        list[str] | None, typer.Option(help="A namespace to watch; may be repeated. Default: all namespaces.")
    ] = None,
    own_namespace: Annotated[
        str, typer.Option(envvar="POD_NAMESPACE", help="The namespace of the Lease by which replicas elect a leader.")
    ] = "default",
    identity: Annotated[
        str, typer.Option(envvar="POD_NAME", help="Name of this replica. Default: host name and process id.")
    ] = "",
    port: Annotated[
        int,
        typer.Option(envvar="TURNMILL_OPERATOR_PORT", help="Port of /healthz, /readyz and /metrics; 0: a free one."),
    ] = 8080,
    allow_in_pods: Annotated[
        list[str] | None,
        typer.Option(help=f"A right that pod templates of teams may use, of {', '.join(RIGHTS)}; may be repeated."),
    ] = None,
    service_account: Annotated[
        list[str] | None,
        typer.Option(help="Name or pattern of service accounts of pods of teams; may be repeated. Default: *-trainer."),
    ] = None,
    gang_timeout_seconds: Annotated[
        int,
        typer.Option(min=0, help="Seconds until the younger of two jobs that block each other gives way; 0: never."),
    ] = int(DEFAULT_TIMEOUT.total_seconds()),
    log_level: Annotated[str, typer.Option(envvar="TURNMILL_LOG_LEVEL", help="debug, info or warning.")] = "info",
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"turnmill-operator {__version__}")
        return
    _log_to_stderr(log_level)
    namespaces = namespace or [part for part in os.environ.get("TURNMILL_OPERATOR_NAMESPACES", "").split(",") if part]
    name = identity or f"{socket.gethostname()}-{os.getpid()}"
    try:
        rules = parse_rules(allow_in_pods or (), service_account or ())
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from error
    settings = Settings(tuple(namespaces), own_namespace, name, port, rules, timedelta(seconds=gang_timeout_seconds))
    asyncio.run(operate(settings))


async def operate(settings: Settings) -> None:
    """Run all tasks of the operator; when one ends, all are stopped."""
    async with AsyncExitStack() as stack:
        api = ApiClient()
        stack.push_async_callback(api.close)
        operator = Operator(settings, api)
        port = await stack.enter_async_context(health_server(operator, settings.port))
        log.info("Operator started", extra={"namespaces": ",".join(settings.namespaces) or "all", "port": port})
        tasks = [
            asyncio.create_task(_watch(operator), name="watches"),
            asyncio.create_task(operator.lease.run(), name="lease"),
            asyncio.create_task(operator.run_resync(), name="listings"),
            asyncio.create_task(operator.poll_progress(), name="progress"),
            *(asyncio.create_task(operator.run_worker(), name=f"worker {number}") for number in range(WORKERS)),
        ]
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in ended:
            log.info("Operator stops", extra={"because": task.get_name()})
            await task


async def _watch(operator: Operator) -> None:
    """Run the watches. kopf ends on SIGTERM and SIGINT."""
    namespaces = operator.settings.namespaces
    await kopf.operator(
        registry=build_registry(operator), standalone=True, clusterwide=not namespaces, namespaces=namespaces
    )


def _log_to_stderr(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.terminator = ""
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("turnmill_operator").setLevel(level.upper())


if __name__ == "__main__":
    sys.exit(main())
