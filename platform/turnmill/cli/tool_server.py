"""`turnmill tool-server`: the options of verl-tool's server, and those of turnmill's."""

import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from turnmill.cli.extras import needs_extra
from turnmill.core import forking
from turnmill.core.activity import show_activity
from turnmill.core.errors import SettingsError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

TRUE, FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")

SETTING = re.compile("[A-Za-z_][A-Za-z0-9_]*")

ACCEPTED = "Without effect; accepted for the sake of verl-tool's scripts"


class FireStyleCommand(TyperCommand):
    """Command that also accepts options in verl-tool's style: `--tool_type X`, `--use_ray=True`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Rewrite the options to typer's style before they are parsed."""
        flags = {
            name
            for parameter in self.params
            for name in (*parameter.opts, *parameter.secondary_opts)
            if getattr(parameter, "is_flag", False)
        }
        return super().parse_args(ctx, from_fire_style(args, flags))


def from_fire_style(arguments: Sequence[str], flags: set[str]) -> list[str]:
    """Rewrite `--tool_type` to `--tool-type`, `--flag True` to `--flag`, `--flag False` to `--no-flag`; drop `None`."""
    rewritten: list[str] = []
    remaining = list(arguments)
    while remaining:
        word = remaining.pop(0)
        if not word.startswith("--"):
            rewritten.append(word)
            continue
        name, has_value, value = word.partition("=")
        name = name.replace("_", "-")
        if not has_value and remaining and (remaining[0] == "None" or (name in flags and _is_boolean(remaining[0]))):
            has_value, value = "=", remaining.pop(0)
        if has_value and value == "None":
            continue
        if name in flags and has_value and _is_boolean(value):
            rewritten.append(name if value.lower() in TRUE else name.replace("--", "--no-", 1))
        else:
            rewritten.append(f"{name}={value}" if has_value else name)
    return rewritten


def _is_boolean(word: str) -> bool:
    return word.lower() in (*TRUE, *FALSE)


def tool_server(
    tool_type: Annotated[
        str, typer.Option(help="Tools to serve, separated by commas; the first that fits acts.")
    ] = "base",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A further name, such as tools.example.org, that clients may address.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that clients must send as `Authorization: Bearer TOKEN`.")
    ] = None,
    tls_cert_file: Annotated[Path | None, typer.Option(help="Certificate chain (PEM): serve HTTPS.")] = None,
    tls_key_file: Annotated[Path | None, typer.Option(help="Private key of --tls-cert-file (PEM).")] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Port for /metrics alone, without token; left out, /metrics is on --port.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one and logs it.")] = 5000,
    listener: Annotated[
        int | None, typer.Option(help="Descriptor of a listening socket, in place of --port.", hidden=True)
    ] = None,
    workers_per_tool: Annotated[int, typer.Option(help="Calls of one request that one tool does at once.")] = 32,
    max_concurrent_requests: Annotated[
        int, typer.Option(help="Requests that one worker process does at once; others wait.")
    ] = 1024,
    thread_pool_size: Annotated[
        int | None,
        typer.Option(help="Synchronous tools that one worker process runs at once; left out, four per request."),
    ] = None,
    request_timeout: Annotated[
        float | None, typer.Option(help="Seconds that the calls of one request may take.")
    ] = None,
    uvi_workers: Annotated[
        int, typer.Option(help="Worker processes; one per 256 requests at once where the machine has processors.")
    ] = 1,
    done_if_invalid: Annotated[bool, typer.Option(help="End the trajectory of an action that no tool takes.")] = False,
    log_level: Annotated[str, typer.Option(help="critical, error, warning, info or debug.")] = "info",
    log_interval: Annotated[int, typer.Option(help="Seconds between log lines with numbers; 0 for none.")] = 30,
    redis: Annotated[
        str | None,
        typer.Option(
            help="URL of the trajectory store; left out, one starts and goes with the server. User and password "
            "may be in TURNMILL_STORE_USER and TURNMILL_STORE_PASSWORD.",
            envvar="TURNMILL_REDIS",
        ),
    ] = None,
    run_name: Annotated[
        str, typer.Option(help="Name under which trajectories lie in the store; servers of one name share them.")
    ] = "tool-server",
    lease_seconds: Annotated[
        float, typer.Option(help="Seconds that a call stays claimed by a server that has died.")
    ] = 1.0,
    expiry_seconds: Annotated[
        float, typer.Option(help="Seconds after which a trajectory that nobody touches is forgotten.")
    ] = 86400.0,
    finished_seconds: Annotated[
        float, typer.Option(help="Seconds that results of a finished trajectory stay, for late repeats.")
    ] = 300.0,
    store_bytes: Annotated[int, typer.Option(help="Memory of the store that comes with the server.")] = 1024**3,
    sandbox: Annotated[
        str, typer.Option(help="fork: with every barrier; process: plain processes with limits alone.")
    ] = "fork",
    max_sandboxes: Annotated[int, typer.Option(help="Runs in the sandbox at once, of one worker; others wait.")] = 64,
    sandbox_memory_mib: Annotated[
        int | None,
        typer.Option(help="Memory that all runs in the sandbox may use together; by default 80 % of all memory."),
    ] = None,
    allow_missing_tools: Annotated[
        bool,
        typer.Option(
            "--allow-missing-tools/--no-allow-missing-tools", help="Start without the tools that cannot work here."
        ),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting of a tool, such as RETRIEVER_URL; or in the environment."
        ),
    ] = None,
    settings_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder with a file for each setting of a tool, such as a mounted Secret with SERPER_API_KEY."
        ),
    ] = None,
    grace_seconds: Annotated[
        float, typer.Option(help="Seconds that calls in flight have to end once the server is to stop.")
    ] = 8.0,
    store_wait_seconds: Annotated[
        float, typer.Option(help="Seconds that a call waits for the trajectory store before it fails.")
    ] = 15.0,
    max_request_bytes: Annotated[int, typer.Option(help="Largest body of a request.")] = 256 * 1024**2,
    model_url: Annotated[
        str | None,
        typer.Option(help="An OpenAI-compatible server, such as http://localhost:8000/v1: opens /chat/completions."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model behind --model-url; left out, the first it lists.")] = None,
    model_api_key: Annotated[
        str, typer.Option(help="Key for --model-url.", envvar="TURNMILL_MODEL_API_KEY", show_envvar=True)
    ] = "none",
    model_timeout: Annotated[float, typer.Option(help="Seconds that one generation may take.")] = 600.0,
    max_turns: Annotated[int, typer.Option(help="Tool calls in one completion.")] = 5,
    action_stop_tokens: Annotated[
        str, typer.Option(help="Strings that end an action in a completion, separated by commas, or a file of them.")
    ] = "",
    max_obs_characters: Annotated[
        int, typer.Option(help="Characters of an observation that a completion takes.")
    ] = 8192,
    max_obs_length: Annotated[
        int | None, typer.Option(help="Tokens of it, cut as in training, in place of --max-obs-characters.")
    ] = None,
    truncate_obs_side: Annotated[
        str, typer.Option(help="Part of a long observation that is cut: left, right, middle.")
    ] = "left",
    min_turns: Annotated[int, typer.Option(help="First turns of a completion that always call a tool.")] = 0,
    enable_mtrl: Annotated[
        bool, typer.Option(help="Observations of a completion are turns of the chat, as in training.")
    ] = False,
    mtrl_role: Annotated[str, typer.Option(help="Role of these turns.")] = "user",
    mtrl_sep: Annotated[
        str | None, typer.Option(help="Text around an observation, with {obs}; left out, from the chat template.")
    ] = None,
    turn_end_token: Annotated[str, typer.Option(help="Text that ends a turn of the model.")] = "<|im_end|>",
    use_ray: Annotated[bool, typer.Option(help=f"{ACCEPTED}: calls run at once without it.")] = False,
    enable_hashing: Annotated[bool, typer.Option(help=f"{ACCEPTED}: repeats are known by their call_id.")] = True,
    use_tqdm: Annotated[bool, typer.Option(help=f"{ACCEPTED}.")] = False,
    router_workers: Annotated[int, typer.Option(help=f"{ACCEPTED}: there is no router.")] = 1,
    parent: Annotated[int | None, typer.Option(help="Process with which the server ends.", hidden=True)] = None,
    log_directory: Annotated[str | None, typer.Option(help=f"{ACCEPTED}: logs go to stderr.")] = None,
) -> None:
    """Run tools for many trajectories over HTTP, as verl-tool's server does."""
    if parent is not None:
        forking.die_with_parent(signal.SIGTERM)
        if os.getppid() != parent:
            raise typer.Exit(1)
        show_activity()
    from pydantic import ValidationError

    with needs_extra("tool-server", "`turnmill tool-server`"):
        from turnmill.tool_server.serve import run_server
        from turnmill.tool_server.settings import ServerSettings
    flags = {name: value for name, value in locals().items() if name in ServerSettings.model_fields}
    given: dict[str, object] = flags | {
        "tool_type": names_of_tools(tool_type),
        "allow_host": tuple(allow_host or ()),
        "tool_settings": settings_in(settings_dir) | tool_settings(settings or ()),
        "action_stop_tokens": stop_tokens(action_stop_tokens),
    }
    try:
        chosen = ServerSettings.model_validate(given)
    except ValidationError as error:
        raise SettingsError("\n".join(map(_problem, error.errors()))) from error
    run_server(chosen)


def names_of_tools(text: str) -> tuple[str, ...]:
    """Parse names of tools. Raises SettingsError if there are none."""
    from turnmill.jobs.tool_server import tool_names

    names = tool_names(text)
    if not names:
        raise SettingsError(f"--tool-type ({text!r}) names no tool. Write for example --tool-type python_code.")
    return names


def tool_settings(pairs: Sequence[str]) -> dict[str, str]:
    """Parse `NAME=VALUE` settings. Raises SettingsError."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise SettingsError(f"--set {pair}: write it as NAME=VALUE, such as RETRIEVER_URL=http://127.0.0.1:8000.")
        settings[name] = value
    return settings


def settings_in(folder: Path | None) -> dict[str, str]:
    """Return the settings in a folder by the names of their files, without line ends. Raises SettingsError.

    Names that start with a dot are those by which Kubernetes replaces the files of a Secret.
    """
    if folder is None:
        return {}
    settings = {}
    try:
        for file in sorted(folder.iterdir()):
            if file.name.startswith("."):
                continue
            if not SETTING.fullmatch(file.name):
                raise SettingsError(
                    f"--settings-dir {folder}: {file.name} is no name of a setting, such as SERPER_API_KEY."
                )
            settings[file.name] = file.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeError) as error:
        raise SettingsError(f"--settings-dir {folder} cannot be read: {error}. Name a folder of text files.") from error
    return settings


def stop_tokens(text: str) -> tuple[str, ...]:
    """Parse `a,b`, or a file with such a line, as verl-tool's evaluation service does."""
    is_file = bool(text) and len(text) < 4096 and Path(text).is_file()
    content = Path(text).read_text(encoding="utf-8") if is_file else text
    return tuple(token.strip("\n ") for token in content.split(",") if token.strip("\n "))


def _problem(error: "ErrorDetails") -> str:
    name = "-".join(str(part) for part in error["loc"]).replace("_", "-")
    if not name:
        return f"{error['msg']}."
    return f"--{name} ({error['input']!r}): {error['msg']}."
