"""The tool `sql`: runs statements on an SQLite database, a copy of it for each trajectory."""

import json
from pathlib import Path
from typing import ClassVar

from turnmill.core.errors import ToolFailedError
from turnmill.sandboxes.base import MIB, Function, Limits, SandboxResult, SandboxTask
from turnmill.tools import settings
from turnmill.tools.base import Tool, ToolCall, ToolContext, ToolResult
from turnmill.tools.code_blocks import encodable, find_all
from turnmill.tools.databases import Database, Databases, MissingDatabaseError
from turnmill.tools.python_code import describe_exit
from turnmill.tools.registry import register
from turnmill.tools.sandboxed.packing import pack
from turnmill.tools.sandboxed.sql_session import DATABASE
from turnmill.tools.sessions import read_session_result
from turnmill.trajectories.base import Change

NO_STATEMENT = (
    "Your previous action is invalid. Follow the format of outputting thinking process and sql tool, and try again."
)
_DIGEST = "digest"
_GRACE_SECONDS = 2.0


@register
class Sql(Tool):
    """Runs the last statement of an action; changes are kept for the trajectory, and the file is never changed."""

    name: ClassVar[str] = "sql"
    stateful: ClassVar[bool] = True

    def __init__(self, context: ToolContext) -> None:
        super().__init__(context)
        values = context.settings
        folder = settings.text(values, "SQL_DB_FOLDER", settings.text(values, "SQL_CACHE_DIR", ""))
        max_bytes = settings.count(values, "SQL_MAX_DB_BYTES", 256 * MIB, least=1)
        self._databases = Databases(Path(folder) if folder else None, max_bytes=max_bytes)
        self._seconds = settings.number(values, "SQL_TIMEOUT_SECONDS", 5, least=0.1)
        self._max_change_bytes = settings.state_bytes(values, "SQL_MAX_CHANGE_BYTES", 8 * MIB)

    def usage(self) -> str:
        """Return one line on how to call it."""
        return "Write one SQL statement between <sql> and </sql>; its result comes back."

    def parse(self, action: str) -> str | None:
        """Return the text after the last <sql>, up to its end tag."""
        _, start, rest = action.rpartition("<sql>")
        statement, end, _ = rest.partition("</sql>")
        return statement.strip() if start and end else None

    async def call(self, call: ToolCall) -> ToolResult:
        """Run the statement."""
        if not _statement(call.parsed):
            return _tool_result(call, NO_STATEMENT)
        try:
            database = await self._databases.read(call.extra)
        except MissingDatabaseError as error:
            if _DIGEST in call.state:
                raise ToolFailedError("sql: the database that this trajectory began with is gone.") from error
            return _tool_result(call, str(error))
        if call.state.get(_DIGEST, database.digest.encode()) != database.digest.encode():
            raise ToolFailedError("sql: the database file is another than the one this trajectory began with.")
        result = await self.context.sandbox.run(self._task(call, database))
        max_bytes = 2 * self._max_change_bytes + MIB
        session = read_session_result(result.value, is_part=_is_state_part, max_bytes=max_bytes)
        if session is None:
            return _tool_result(call, _describe_failure(call, result))
        written = dict(session.change.written)
        if written and _DIGEST not in call.state:
            written[_DIGEST] = database.digest.encode()
        return _tool_result(
            call, str(session.report.get("text")), Change(written=written, removed=session.change.removed)
        )

    def _task(self, call: ToolCall, database: Database) -> SandboxTask:
        state = {name: part for name, part in call.state.items() if name != _DIGEST}
        limits = {"seconds": self._seconds, "bytes": self._max_change_bytes}
        argument = pack(
            {
                "statement": _statement(call.parsed).encode("utf-8", "replace"),
                "state": pack(state),
                "limits": json.dumps(limits).encode(),
            }
        )
        seconds = self._seconds + _GRACE_SECONDS
        return SandboxTask(
            Function("turnmill.tools.sandboxed.sql_session:run", argument),
            copies={DATABASE: str(database.path)},
            limits=Limits(
                seconds=seconds,
                cpu_seconds=int(seconds) + 1,
                file_bytes=Limits().file_bytes + 3 * database.size,
            ),
        )


def _statement(text: str) -> str:
    """Return the statement without a code fence around it."""
    fenced = find_all(r"(?is)```sql[ \t]*[\r\n]+(.*?)[\r\n]+[ \t]*```", text)
    return fenced[-1].strip() if fenced else text


def _tool_result(call: ToolCall, text: str, change: Change | None = None) -> ToolResult:
    reminder = f"<reminder>You have {call.extra.get('turns_left', 0)} turns left to complete the task.</reminder>"
    observation = f"\n\n<observation>{encodable(text)}\n{reminder}</observation>\n\n"
    return ToolResult({"obs": observation, "parsed_sql": call.parsed}, change=change)


def _describe_failure(call: ToolCall, result: SandboxResult) -> str:
    if result.limit == "time":
        return f"SQL Timeout:\n{call.parsed}"
    why = f"stopped at its limit of {result.limit}" if result.limit else describe_exit(result).strip().lower()
    return f"Error executing SQL: {why}"


def _is_state_part(name: str) -> bool:
    return name == "length" or name.startswith("block/")
