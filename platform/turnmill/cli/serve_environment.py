"""`turnmill serve-environment`: an environment for others to train on, over OpenEnv's protocol."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from turnmill.cli.extras import needs_extra
from turnmill.core.errors import SettingsError
from turnmill.observability import logs

_FLAGS = {
    "environment.options.": "--set ",
    "environment.name": "NAME",
    "environment.task": "--task",
    "environment.python": "--python",
}
"""Fields of a job that errors name, and what they are on the command line."""


def serve_environment(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Environment, as in a job: babyai, or package.module:Class.")
    ],
    task: Annotated[str | None, typer.Option(help="Task within the environment.")] = None,
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="OPTION=VALUE", help="An option of the environment, such as numDists=2."),
    ] = None,
    max_turns: Annotated[int, typer.Option(min=1, help="Actions after which an episode is truncated.")] = 64,
    invalid_penalty: Annotated[
        float, typer.Option(min=0, help="Subtracted as the reward of an action that is not valid.")
    ] = 0.1,
    binary_reward: Annotated[
        bool, typer.Option("--binary-reward/--no-binary-reward", help="Count every positive reward as 1.")
    ] = False,
    python: Annotated[
        Path | None, typer.Option(help="Interpreter of an environment whose packages conflict with turnmill's.")
    ] = None,
    step_timeout: Annotated[float, typer.Option(min=0.001, help="Seconds that one action may take.")] = 30.0,
    reset_timeout: Annotated[float, typer.Option(min=0.001, help="Seconds that a reset may take.")] = 60.0,
    memory_mib: Annotated[int, typer.Option(min=256, help="Memory that one environment may use, in MiB.")] = 8192,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one and logs it.")
    ] = 8000,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A further name, such as env.example.org, that clients may address.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that clients must send as `Authorization: Bearer TOKEN`.")
    ] = None,
    max_sessions: Annotated[int, typer.Option(min=1, help="Sessions at once; each is a process.")] = 64,
    idle_seconds: Annotated[
        float, typer.Option(min=0.001, help="Seconds after which a session ends whose client sends nothing.")
    ] = 3600.0,
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="When it is stopped: seconds for which it waits for episodes in progress.")
    ] = 30.0,
    max_message_bytes: Annotated[int, typer.Option(min=1024, help="Largest message of a client.")] = 1024**2,
) -> None:
    """Serve an environment over OpenEnv's protocol, one process per session, for others to train on."""
    with needs_extra("training", "`turnmill serve-environment`"):
        from turnmill.environment_server.serve import ServerSettings, run_server
        from turnmill.environments.runtime.worker import WorkerSettings
    logs.configure()
    settings = ServerSettings(
        environment=WorkerSettings.model_validate(
            {
                "name": name,
                "task": task,
                "max_turns": max_turns,
                "options": environment_options(options or ()),
                "python": None if python is None else str(python),
                "invalid_penalty": invalid_penalty,
                "binary_reward": binary_reward,
                "memory_limit_bytes": memory_mib * 2**20,
            }
        ),
        step_timeout_seconds=step_timeout,
        reset_timeout_seconds=reset_timeout,
        host=host,
        port=port,
        allowed_hosts=tuple(allow_host or ()),
        token_file=token_file,
        max_sessions=max_sessions,
        idle_seconds=idle_seconds,
        drain_seconds=drain_seconds,
        max_message_bytes=max_message_bytes,
    )
    try:
        run_server(settings)
    except SettingsError as error:
        raise SettingsError(_with_flags(str(error))) from error


def environment_options(pairs: Sequence[str]) -> dict[str, object]:
    """Parse `OPTION=VALUE` pairs, with values as in a job file. Raises SettingsError."""
    from turnmill.jobs.problems import JobError
    from turnmill.jobs.yaml_file import parse_yaml

    options: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not name or not equals:
            raise SettingsError(f"--set {pair}: write it as OPTION=VALUE, such as numDists=2.")
        try:
            document = parse_yaml(text)
            if document.problems:
                raise JobError(document.problems)
        except JobError as error:
            rule = error.problems[0].rule
            raise SettingsError(f"--set {name} ({text!r}) {rule}. Quote the value as YAML wants it.") from error
        options[name] = document.value
    return options


def _with_flags(message: str) -> str:
    for field, flag in _FLAGS.items():
        message = message.replace(field, flag)
    return message
