"""Servers that a run starts as processes of this machine."""

import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from turnmill.core.errors import SettingsError

HEALTH_SECONDS = 2.0


def is_healthy(url: str) -> bool:
    """Return whether a server answers at `/health` that all is well."""
    return _health(url, HEALTH_SECONDS) == 200


def answers(url: str, *, seconds: float = HEALTH_SECONDS) -> bool:
    """Return whether a server answers at `/health` in time, whatever it says."""
    return _health(url, seconds) is not None


def _health(url: str, seconds: float) -> int | None:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=seconds) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (urllib.error.URLError, OSError):
        return None


def require_access(urls: str | None) -> None:
    """Raise SettingsError if one of these tool servers refuses the run's token; one that is silent may come later."""
    from turnmill.rollout.tool_agent.client import TOKEN, authorization, parse_urls

    # Calls do not go through a proxy either.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for url in parse_urls(urls or ""):
        try:
            # No call: a server that lets it in answers that it takes no GET.
            opener.open(urllib.request.Request(url, headers=authorization(url)), timeout=5).close()
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise SettingsError(
                    f"The tool server {url} refuses the run ({error.code}): the token in {TOKEN} is "
                    f"{'not its own' if authorization(url) else 'missing'}. Give it that of the server; in a team's "
                    "namespace, restart the tool servers after a change of their Secret."
                ) from None
        except OSError:
            continue


def stop(process: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Terminate a process, and kill it if it does not end in time."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def tail(log_file: Path, lines: int) -> str:
    """Return the last lines of a log."""
    return "\n".join(log_file.read_text(errors="replace").splitlines()[-lines:])
