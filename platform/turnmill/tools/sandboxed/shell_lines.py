"""Grouping of lines into commands, for which bash itself checks where a command ends."""

import re
from collections.abc import Sequence

_MAY_GO_ON = re.compile(r"""<<|['"`({]|\\$|(\|\|?|&&)\s*$|\b(if|then|else|for|while|until|do|case|select|function)\b""")
_OPEN_DOCUMENT = re.compile(r"here-document .* \(wanted `(.*)'\)")
_OPEN_COMMAND = re.compile(r"unexpected (end of file|EOF)")
_MAX_CHECKS = 300
"""Maximum syntax checks of one block; after those, each line is a command."""


def join_lines(lines: Sequence[str]) -> list[str]:
    """Return commands of one or more lines, without empty ones; a command without an end is left as single lines."""
    commands: list[str] = []
    start, checks_left = 0, _MAX_CHECKS
    while start < len(lines):
        count, num_checks = _lines_of_command(lines[start:], checks_left)
        checks_left -= num_checks
        command = "\n".join(lines[start : start + count])
        if command.strip():
            commands.append(command)
        start += count
    return commands


def _lines_of_command(lines: Sequence[str], max_checks: int) -> tuple[int, int]:
    """Return the number of lines of the first command, 1 if it has no end, and the number of syntax checks."""
    num_checks = 0
    if not _MAY_GO_ON.search(lines[0]):
        return 1, num_checks
    awaited: str | None = None
    for count in range(1, len(lines) + 1):
        if awaited is not None and lines[count - 1].strip() != awaited:
            continue
        if num_checks == max_checks:
            break
        num_checks += 1
        text = "\n".join(lines[:count])
        complaint = _complaint(text)
        document = _OPEN_DOCUMENT.search(complaint)
        awaited = document.group(1) if document else None
        if document is None and not _OPEN_COMMAND.search(complaint) and not _escapes_its_end(text):
            return count, num_checks
    return 1, num_checks


def _complaint(text: str) -> str:
    """Return the error messages of bash's syntax check."""
    import subprocess  # Seldom needed, and every process of the sandbox would carry it.

    checked = subprocess.run(
        ["bash", "--norc", "--noprofile", "-n"],
        input=text.encode("utf-8", "surrogateescape"),
        env={"LC_ALL": "C"},
        capture_output=True,
        check=False,
    )
    return checked.stderr.decode("utf-8", "replace")


def _escapes_its_end(text: str) -> bool:
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1
