"""BIRD: translate a question into SQL, judged by the result of the query."""

import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from turnmill.core.errors import SettingsError
from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.bird.database import QueryError, QueryTimeoutError, Rows, open_database, query, schema
from turnmill.environments.registry import register
from turnmill.tasks.dataset import SeededRows

NO_STATEMENT = ""
"""Action of a response without a block of SQL."""

NO_STATEMENT_REWARD = -0.5
_FENCED = re.compile(r"```sql\s*(.*?)\s*```", re.IGNORECASE | re.DOTALL)
_SAMPLE = Path(__file__).parent / "sample"
_COLUMNS = ("question", "SQL", "db_id")


class BirdOptions(EnvironmentOptions):
    """Files of questions and databases, and limits of an episode."""

    path: str | None = None
    """File of questions, `.jsonl` or `.parquet`, with columns `question`, `SQL`, `db_id` and optionally `schema`; if
    omitted, a few questions about a small built-in database, for trials."""

    validation_path: str | None = None
    """File of questions for validations; if omitted, that of `path`."""

    databases: str | None = None
    """Folder of the databases, each at `<db_id>/<db_id>.sqlite`."""

    max_steps: int = Field(default=5, ge=1)
    """Statements after which an episode ends."""

    query_timeout_seconds: float = Field(default=20, gt=0)
    """Time a statement may take; keep it below `environment.stepTimeoutSeconds` and
    `environment.resetTimeoutSeconds`."""


@register
class Bird(Environment):
    """BIRD (Li et al., 2023): the agent answers a question in SQL until the result is correct."""

    name: ClassVar[str] = "bird"
    tasks: ClassVar[tuple[str, ...] | None] = ()
    Settings: ClassVar[type[EnvironmentOptions]] = BirdOptions
    actions = ()
    default_action = NO_STATEMENT

    def __init__(self, task: str | None, max_turns: int, options: BirdOptions) -> None:
        super().__init__(task, max_turns, options)
        if (options.path is None) != (options.databases is None):
            raise SettingsError(
                "environment.options.databases: must be set together with environment.options.path. Set both, or "
                "neither for a trial."
            )
        self._rows = _read(options)
        for name in {str(row["db_id"]) for rows in self._rows.by_option().values() for row in rows}:
            self._database_file(name)
        self._row: Mapping[str, object] = {}
        self._correct_rows: Rows = Rows()
        self._connection: sqlite3.Connection | None = None
        self._num_steps = 0

    def reset(self, seed: int) -> str:
        """Return the question that the seed selects, with the schema of its database."""
        self.close()
        self._row = self._rows.draw(seed)
        self._connection = open_database(self._database_file(str(self._row["db_id"])))
        self._correct_rows = self._query_correct_rows()
        self._num_steps = 0
        tables = self._row.get("schema") or schema(self._connection)
        return f"[DB schema:\n{tables}] {self._row['question']}"

    def step(self, action: str) -> StepResult:
        """Run a statement and compare its rows with those of the correct one."""
        self._num_steps += 1
        if action == NO_STATEMENT:
            observation = "No ```sql``` block detected."
            return StepResult(observation, NO_STATEMENT_REWARD, terminated=True, info=_info(valid=False))
        correct, observation = self._judge(action)
        return StepResult(
            observation,
            reward=0.5 ** (self._num_steps - 1) if correct else 0.0,
            terminated=correct,
            truncated=not correct and self._num_steps >= self.options.max_steps,
            info=_info(correct=correct),
        )

    def instruction_prompt(self) -> str:
        """Return the prompt with the form of an answer."""
        return (
            "Translate a question into SQL for the SQLite database whose schema you are shown. Your action is one "
            "block that holds one statement and nothing else:\n```sql\nSELECT name FROM author WHERE id = 7\n```\n"
            "If its result is not the right one you are told so, and may try again."
        )

    def compact_prompt(self) -> str:
        """Return the goal."""
        return "goal: answer in SQL"

    def match_action(self, answer: str) -> str | None:
        """Return the statement in the first block of SQL."""
        found = _FENCED.search(answer)
        return (found[1].rstrip("; \n") or None) if found else None

    def close(self) -> None:
        """Close the database."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _database_file(self, name: str) -> Path:
        if self.options.databases is None:
            return _SAMPLE / f"{name}.sql"
        file = Path(self.options.databases) / name / f"{name}.sqlite"
        if not file.is_file():
            raise SettingsError(
                f"environment.options.databases: the file {str(file)!r}, which a question needs, does not exist. "
                "Put it there."
            )
        return file

    def _query_correct_rows(self) -> Rows:
        # At the reset, so that its time does not count against the agent's steps, and once for all attempts.
        try:
            return self._query(str(self._row["SQL"]).rstrip("; \n"))
        except QueryError as error:
            raise SettingsError(
                f"environment.options: answers to the question {self._row['question']!r} cannot be judged, because its "
                f"own SQL failed: {error}. Correct the row, or raise queryTimeoutSeconds."
            ) from error

    def _query(self, statement: str) -> Rows:
        assert self._connection is not None, "an episode begins with a reset"
        return query(self._connection, statement, timeout_seconds=self.options.query_timeout_seconds)

    def _judge(self, statement: str) -> tuple[bool, str]:
        """Return whether the statement's result is correct, and the observation for the agent."""
        try:
            rows = self._query(statement)
        except QueryTimeoutError:
            seconds = self.options.query_timeout_seconds
            return False, f"Your statement took longer than {seconds:g} s. Try a simpler one."
        except QueryError as error:
            return False, f"Result mismatch. SQL error: {error}"
        if rows == self._correct_rows:
            return True, "Result matches!"
        return False, "Result mismatch."


def _read(options: BirdOptions) -> SeededRows:
    found = SeededRows.read(options.path, options.validation_path, sample=_SAMPLE / "questions.jsonl")
    for option, rows in found.by_option().items():
        for number, row in enumerate(rows, 1):
            if missing := [column for column in _COLUMNS if column not in row]:
                raise SettingsError(
                    f"environment.options.{option}: row {number} has no column {missing[0]!r}. Every row needs "
                    "question, SQL and db_id."
                )
    return found


def _info(*, correct: bool = False, valid: bool = True) -> dict[str, float]:
    return {"success": float(correct), "action_is_valid": float(valid)}
