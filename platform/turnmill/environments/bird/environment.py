"""BIRD: translate a question into SQL; what counts is the result, not the words."""

import re
import sqlite3
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from turnmill.core.errors import SettingsError
from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.bird.database import QueryError, QueryTimeoutError, Rows, ask, open_database, schema
from turnmill.environments.registry import register
from turnmill.tasks.dataset import DrawnRows

NO_STATEMENT = ""
"""The action of a response without a block of SQL."""

NO_STATEMENT_REWARD = -0.5
_FENCED = re.compile(r"```sql\s*(.*?)\s*```", re.IGNORECASE | re.DOTALL)
_SAMPLE = Path(__file__).parent / "sample"
_COLUMNS = ("question", "SQL", "db_id")


class BirdOptions(EnvironmentOptions):
    """Where questions and databases are."""

    path: str | None = None
    """File of questions, `.jsonl` or `.parquet`, with `question`, `SQL`, `db_id` and, if you like, `schema`; left
    out, a few questions to a small database that comes along, for trials."""

    validation_path: str | None = None
    """File of the questions that validations ask; left out, they ask those of `path`."""

    databases: str | None = None
    """Folder of the databases, each at `<db_id>/<db_id>.sqlite`."""

    max_steps: int = Field(default=5, ge=1)
    """Statements after which an episode ends."""

    query_timeout_seconds: float = Field(default=20, gt=0)
    """Time a statement may take; keep it below `environment.stepTimeoutSeconds` and
    `environment.resetTimeoutSeconds`."""


@register
class Bird(Environment):
    """One question: the agent answers in SQL until the result is right."""

    name: ClassVar[str] = "bird"
    Settings: ClassVar[type[EnvironmentOptions]] = BirdOptions
    actions = ()
    default_action = NO_STATEMENT

    def __init__(self, task: str | None, max_turns: int, options: BirdOptions) -> None:
        super().__init__(task, max_turns, options)
        if (options.path is None) != (options.databases is None):
            raise SettingsError(
                "environment.options.databases: goes with environment.options.path. Give both, or neither for a trial."
            )
        self._rows = _read(options)
        for name in {str(row["db_id"]) for rows in self._rows.by_option().values() for row in rows}:
            self._database_file(name)
        self._row: dict[str, Any] = {}
        self._right_rows: Rows = Rows()
        self._connection: sqlite3.Connection | None = None
        self._num_steps = 0

    def reset(self, seed: int) -> str:
        """Ask the question that a seed stands for."""
        self.close()
        self._row = self._rows.draw(seed)
        self._connection = open_database(self._database_file(str(self._row["db_id"])))
        self._right_rows = self._ask_the_right_statement()
        self._num_steps = 0
        tables = self._row.get("schema") or schema(self._connection)
        return f"[DB schema:\n{tables}] {self._row['question']}"

    def step(self, action: str) -> StepResult:
        """Run a statement and compare its rows with those of the right one."""
        self._num_steps += 1
        if action == NO_STATEMENT:
            told = "No ```sql``` block detected."
            return StepResult(told, NO_STATEMENT_REWARD, terminated=True, info=_info(valid=False))
        right, told = self._judge(action)
        return StepResult(
            told,
            reward=0.5 ** (self._num_steps - 1) if right else 0.0,
            terminated=right,
            truncated=not right and self._num_steps >= self.options.max_steps,
            info=_info(right=right),
        )

    def instruction_prompt(self) -> str:
        """Explain the form of an answer."""
        return (
            "Translate a question into SQL for the SQLite database whose schema you are shown. Your action is one "
            "block that holds one statement and nothing else:\n```sql\nSELECT name FROM author WHERE id = 7\n```\n"
            "If its result is not the right one you are told so, and may try again."
        )

    def compact_prompt(self) -> str:
        """State the task."""
        return "goal: answer in SQL"

    def match_action(self, answer: str) -> str | None:
        """The statement in the first block of SQL."""
        found = _FENCED.search(answer)
        return (found[1].rstrip("; \n") or None) if found else None

    def close(self) -> None:
        """Let go of the database."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _database_file(self, name: str) -> Path:
        if self.options.databases is None:
            return _SAMPLE / f"{name}.sql"
        file = Path(self.options.databases) / name / f"{name}.sqlite"
        if not file.is_file():
            raise SettingsError(
                f"environment.options.databases: {str(file)!r} is no file, and a question asks for it. Put it there."
            )
        return file

    def _ask_the_right_statement(self) -> Rows:
        # With the reset, whose time is not the agent's, and once for all its tries.
        try:
            return self._ask(str(self._row["SQL"]).rstrip("; \n"))
        except QueryError as error:
            raise SettingsError(
                f"environment.options: the question {self._row['question']!r} cannot be judged, for its own SQL has no "
                f"result: {error}. Correct the row, or raise queryTimeoutSeconds."
            ) from error

    def _ask(self, statement: str) -> Rows:
        assert self._connection is not None, "an episode begins with a reset"
        return ask(self._connection, statement, seconds=self.options.query_timeout_seconds)

    def _judge(self, statement: str) -> tuple[bool, str]:
        try:
            rows = self._ask(statement)
        except QueryTimeoutError:
            seconds = self.options.query_timeout_seconds
            return False, f"Your statement took longer than {seconds:g} s. Try a simpler one."
        except QueryError as error:
            return False, f"Result mismatch. SQL error: {error}"
        if rows == self._right_rows:
            return True, "Result matches!"
        return False, "Result mismatch."


def _read(options: BirdOptions) -> DrawnRows:
    drawn = DrawnRows.read(options.path, options.validation_path, own=_SAMPLE / "questions.jsonl")
    for option, rows in drawn.by_option().items():
        for number, row in enumerate(rows, 1):
            if missing := [column for column in _COLUMNS if column not in row]:
                raise SettingsError(
                    f"environment.options.{option}: row {number} has no column {missing[0]!r}. Every row needs "
                    "question, SQL and db_id."
                )
    return drawn


def _info(*, right: bool = False, valid: bool = True) -> dict[str, float]:
    return {"success": float(right), "action_is_valid": float(valid)}
