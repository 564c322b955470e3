import itertools
import json
import sqlite3
from types import SimpleNamespace

import pytest

from turnmill import environments
from turnmill.core.errors import SettingsError
from turnmill.environments.base import VALIDATION_SEEDS
from turnmill.environments.bird import Bird, database
from turnmill.environments.bird.database import QueryTimeoutError
from turnmill.environments.bird.environment import _SAMPLE
from turnmill.tasks.dataset import read_rows

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"

COUNTING = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 200) SELECT SUM(i) FROM n"
"""About 3,000 steps of SQLite's virtual machine."""


def create(**options: object) -> Bird:
    environment = environments.create("bird", options=options)
    assert isinstance(environment, Bird)
    return environment


@pytest.fixture
def own_data(tmp_path):
    folder = tmp_path / "databases" / "town"
    folder.mkdir(parents=True)
    with sqlite3.connect(folder / "town.sqlite") as connection:
        connection.execute("CREATE TABLE house (number INTEGER, owner TEXT)")
        connection.executemany("INSERT INTO house VALUES (?, ?)", [(1, "Ada"), (2, None), (3, "Ben")])
    question = {"db_id": "town", "question": "Who owns a house?", "SQL": "SELECT owner FROM house"}
    (tmp_path / "questions.jsonl").write_text(json.dumps(question) + "\n")
    return {"path": str(tmp_path / "questions.jsonl"), "databases": str(tmp_path / "databases")}


def test_every_bundled_question_is_solved_by_its_reference_statement():
    environment = create()
    answers = {row["question"]: row["SQL"] for row in read_rows(_SAMPLE / "questions.jsonl", "path")}
    for seed in range(30):
        observation = environment.reset(seed)
        result = environment.step(answers[observation.rpartition("] ")[2]])

        assert observation.startswith("[DB schema:\nCREATE TABLE author")
        assert (result.reward, result.terminated, result.info["success"]) == (1.0, True, 1.0)


def test_the_order_of_result_rows_is_ignored(own_data):
    environment = create(**own_data)
    environment.reset(0)

    assert environment.step("SELECT owner FROM house ORDER BY number DESC").terminated


def test_the_reward_of_a_right_answer_halves_with_every_try(own_data):
    environment = create(**own_data)
    environment.reset(0)

    first = environment.step("SELECT number FROM house")
    second = environment.step("SELECT colour FROM house")
    third = environment.step("SELECT owner FROM house")

    assert (first.reward, first.observation) == (0.0, "Result mismatch.")
    assert second.observation == "Result mismatch. SQL error: no such column: colour"
    assert third.reward == 0.25


def test_an_answer_without_a_block_of_sql_ends_the_episode():
    environment = create()
    environment.reset(0)

    result = environment.step(environment.default_action)

    assert (result.reward, result.terminated) == (-0.5, True)


def test_an_episode_ends_after_its_last_statement():
    environment = create(maxSteps=2)
    environment.reset(0)

    assert not environment.step("SELECT 1").truncated
    assert environment.step("SELECT 1").truncated


def test_a_statement_that_takes_too_long_is_stopped():
    environment = create(queryTimeoutSeconds=0.5)
    environment.reset(0)

    result = environment.step(ENDLESS)

    assert result.observation == "Your statement took longer than 0.5 s. Try a simpler one."
    assert not result.terminated


@pytest.fixture
def clock(monkeypatch):
    """A clock that advances by one second whenever it is read."""
    ticks = itertools.count()
    monkeypatch.setattr(database, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    return ticks


def test_the_timeout_is_checked_many_times_within_a_statement(clock):
    with pytest.raises(QueryTimeoutError):
        database.query(sqlite3.connect(":memory:"), COUNTING, timeout_seconds=10)


def test_judging_executes_only_the_statement_of_the_agent(own_data, tmp_path, clock):
    question = {"db_id": "town", "question": "Sum?", "SQL": COUNTING}
    (tmp_path / "questions.jsonl").write_text(json.dumps(question) + "\n")
    environment = create(**own_data, queryTimeoutSeconds=1000)
    before = next(clock)
    database.query(sqlite3.connect(":memory:"), COUNTING, timeout_seconds=1000)
    alone = next(clock) - before
    environment.reset(0)
    before = next(clock)

    assert environment.step(COUNTING).terminated
    assert next(clock) - before == alone


def test_a_question_whose_reference_statement_fails_is_refused(own_data, tmp_path):
    question = {"db_id": "town", "question": "Who?", "SQL": "SELECT colour FROM house"}
    (tmp_path / "questions.jsonl").write_text(json.dumps(question) + "\n")
    environment = create(**own_data)

    with pytest.raises(SettingsError, match=r"'Who\?' cannot be judged, .*: no such column: colour"):
        environment.reset(0)


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE book",
        "INSERT INTO author VALUES (9, 'x', 'y')",
        "ATTACH '/etc/passwd' AS other",
        "PRAGMA writable_schema = 1",
        "VACUUM INTO '/tmp/copy'",
        "SELECT load_extension('x')",
        "SELECT 1; SELECT 2",
        "SELECT zeroblob(1000000000)",
        "SELECT \0",
        "SELECT '\ud800'",
    ],
)
def test_a_statement_that_does_more_than_read_fails_and_the_episode_continues(statement):
    environment = create()
    environment.reset(0)

    result = environment.step(statement)

    assert result.observation.startswith("Result mismatch. SQL error: ")
    assert not result.terminated


@pytest.mark.parametrize(
    ("answer", "statement"),
    [
        ("```sql\nSELECT 'Ann';\n```", "SELECT 'Ann'"),
        ("so: ```SQL SELECT 1``` or ```sql\nSELECT 2\n```", "SELECT 1"),
        ("SELECT 1", None),
        ("```sql\n```", None),
    ],
)
def test_the_statement_is_taken_from_a_block_of_sql(answer, statement):
    assert create().match_action(answer) == statement


def test_a_missing_database_is_refused_before_the_first_episode(own_data, tmp_path):
    with pytest.raises(SettingsError, match=r"options\.databases: the file '.*town\.sqlite', which"):
        create(path=own_data["path"], databases=str(tmp_path / "elsewhere"))


@pytest.mark.parametrize("option", ["path", "validationPath"])
def test_a_missing_database_of_any_question_is_refused(own_data, tmp_path, option):
    other = {"db_id": "village", "question": "?", "SQL": "SELECT 1"}
    (tmp_path / "other.jsonl").write_text(json.dumps(other) + "\n")

    with pytest.raises(SettingsError, match=r"'.*village\.sqlite', which"):
        create(**own_data | {option: str(tmp_path / "other.jsonl")})


def test_questions_and_databases_must_be_set_together(own_data):
    with pytest.raises(SettingsError, match="Set both"):
        create(path=own_data["path"])


def test_validations_use_the_questions_of_the_validation_path(own_data, tmp_path):
    question = {"db_id": "town", "question": "How many houses?", "SQL": "SELECT COUNT(*) FROM house"}
    (tmp_path / "validation.jsonl").write_text(json.dumps(question) + "\n")
    environment = create(**own_data, validationPath=str(tmp_path / "validation.jsonl"))

    assert environment.reset(VALIDATION_SEEDS - 1).endswith("How many houses?")
    assert environment.reset(VALIDATION_SEEDS).endswith("Who owns a house?")


def test_a_question_without_a_reference_statement_is_refused(own_data, tmp_path):
    (tmp_path / "questions.jsonl").write_text('{"db_id": "town", "question": "?"}\n')

    with pytest.raises(SettingsError, match="row 1 has no column 'SQL'"):
        create(**own_data)
