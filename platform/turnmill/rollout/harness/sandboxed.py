"""Programs in namespaces of their own, in whose network the gateway answers."""

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from starlette.types import ASGIApp

from turnmill.core.errors import HarnessError, SandboxError
from turnmill.gateway.server import HttpServer, LimitedHttpProtocol
from turnmill.jobs.harness_agent import HarnessAgent
from turnmill.rollout.harness import entry_point
from turnmill.rollout.harness.program import Ended, import_paths, run_program
from turnmill.sandboxes.program import PORT, ProgramOptions, interpreter_paths, launcher, receive_listener

URL = f"http://127.0.0.1:{PORT}"
"""The gateway's address, as the program sees it."""


async def run_sandboxed(
    command: Sequence[str],
    agent: HarnessAgent,
    app: ASGIApp,
    *,
    folder: str,
    workspace: str,
    task: Mapping[str, object],
    variables: Mapping[str, str],
    stop: asyncio.Event,
) -> Ended:
    """Run a program with a gateway in its network, in a folder that `make_folders` has prepared.

    Raises HarnessError if it does not start.
    """
    assert agent.sandbox is not None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    options = ProgramOptions(
        tuple(command), folder, readable_paths(command, agent), agent.sandbox.processes, theirs.fileno()
    )
    with ours:
        serving = asyncio.create_task(_serve(ours, app))
        try:
            with theirs:
                ended = await run_program(
                    launcher(options),
                    task=task,
                    variables=variables,
                    workspace=Path(workspace),
                    timeout_seconds=agent.timeout_seconds,
                    stop=stop,
                    descriptors=(theirs.fileno(),),
                )
        finally:
            # Without the other end, it waits no longer.
            server = await serving
            if isinstance(server, HttpServer):
                await server.close()
    if isinstance(server, SandboxError):
        raise HarnessError(f"spec.agent.sandbox: {server}")
    return ended


def readable_paths(command: Sequence[str], agent: HarnessAgent) -> tuple[str, ...]:
    """Return what a program may read besides the system: its interpreter, its function, and what the job names."""
    assert agent.sandbox is not None
    paths = [*interpreter_paths(command[0]), *agent.sandbox.paths]
    if agent.entry_point is not None:
        paths.append(entry_point.__file__)
        paths += import_paths(agent.python).get("PYTHONPATH", "").split(os.pathsep)
        file = agent.entry_point.rpartition(":")[0]
        if file.endswith(".py"):
            paths.append(str(Path(file).absolute().parent))
    return tuple(filter(None, paths))


async def _serve(control: socket.socket, app: ASGIApp) -> HttpServer | SandboxError:
    try:
        listener = await asyncio.to_thread(receive_listener, control)
    except SandboxError as error:
        return error
    server = HttpServer(app, listener, http=LimitedHttpProtocol)
    server.start()
    return server
