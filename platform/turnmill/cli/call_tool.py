"""`turnmill call-tool`: sends one action to a tool server and prints the answer."""

import json
import os
import sys
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Annotated

import typer

from turnmill.core.errors import SettingsError, TurnmillError

ENDPOINT = "/get_observation"


class CallFailedError(TurnmillError):
    """A tool server cannot be reached, or refuses a call."""


def call_tool(
    action: Annotated[
        str, typer.Argument(metavar="ACTION", help="The action, such as '<python>print(1)</python>'; - reads stdin.")
    ] = "",
    url: Annotated[
        str, typer.Option(help="The tool server, with or without /get_observation.")
    ] = "http://localhost:5000",
    trajectory_id: Annotated[
        str | None, typer.Option(help="Trajectory whose state the call continues; left out, one for this call alone.")
    ] = None,
    extra: Annotated[str, typer.Option(metavar="JSON", help="Extra fields of the action, as a JSON object.")] = "{}",
    finish: Annotated[bool, typer.Option("--finish", help="End the trajectory and delete its state.")] = False,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the server's token; or set TURNMILL_TOOL_SERVER_TOKEN.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds to wait for the answer.")] = 60.0,
) -> None:
    """Call a tool of a tool server once."""
    if not action and not finish:
        raise SettingsError("ACTION is missing. Write for example: turnmill call-tool '<python>print(1)</python>'.")
    text = sys.stdin.read() if action == "-" else action
    # Without an id, nobody could continue the trajectory.
    trajectory, ends = trajectory_id or uuid.uuid4().hex, trajectory_id is None
    fields, token = _extra_fields(extra), _token(token_file)
    answer = _post(url, _body(trajectory, text, fields, finish=finish), token, timeout)
    if ends and not finish:
        _post(url, _body(trajectory, "", {}, finish=True), token, timeout)
    typer.echo(json.dumps(answer, indent=2, ensure_ascii=False))


def _body(trajectory_id: str, action: str, fields: dict[str, object], *, finish: bool) -> dict[str, object]:
    return {
        "trajectory_ids": [trajectory_id],
        "actions": [action],
        "finish": [finish],
        "is_last_step": [finish],
        "extra_fields": [fields],
    }


def _extra_fields(text: str) -> dict[str, object]:
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise SettingsError(
            f'--extra {text}: no JSON ({error}). Write for example --extra \'{{"db_id": "shop"}}\'.'
        ) from None
    if not isinstance(fields, dict):
        raise SettingsError(f'--extra {text}: it must be a JSON object, such as \'{{"db_id": "shop"}}\'.')
    return fields


def _token(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get("TURNMILL_TOOL_SERVER_TOKEN")
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise SettingsError(f"--token-file {file} cannot be read: {error}.") from error


def _post(url: str, body: dict[str, object], token: str | None, seconds: float) -> object:
    if not url.startswith(("http://", "https://")):
        raise SettingsError(f"--url {url}: it must begin with http:// or https://.")
    address = url.rstrip("/").removesuffix(ENDPOINT) + ENDPOINT
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=seconds) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as error:
        detail = error.read().decode(errors="replace")[:2000]
        raise CallFailedError(f"{address} answers {error.code}: {detail}") from error
    except (OSError, ValueError) as error:
        raise CallFailedError(f"{address} does not answer: {getattr(error, 'reason', error)}") from error
