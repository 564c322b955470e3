import json
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnmill.tools.sandboxed.packing import pack, unpack
from turnmill.tools.sandboxed.sql_session import BLOCK_BYTES, DATABASE, block_digests, changes_since, patch, run

contents = st.binary(max_size=3 * BLOCK_BYTES).map(lambda data: data * 2)


@pytest.fixture
def database(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    connection = sqlite3.connect("made.sqlite")
    connection.execute("create table item(name text, price real)")
    connection.executemany("insert into item values (?, ?)", [("pen", 1.5), ("ink", 12)])
    connection.commit()
    connection.close()
    return (tmp_path / "made.sqlite").read_bytes()


def execute(database: bytes, statement: str, state: dict[str, bytes], **limits: float) -> str:
    limits = {"seconds": 5, "bytes": 2**20, **limits}
    Path(DATABASE).write_bytes(database)
    argument = {"statement": statement.encode(), "state": pack(state)}
    fields = unpack(run(pack({**argument, "limits": json.dumps(limits).encode()})))
    for name in json.loads(fields["removed"]):
        del state[name]
    state.update(unpack(fields["written"]))
    return json.loads(fields["report"])["text"]


@given(contents, st.lists(contents, max_size=4))
def test_accumulated_changes_turn_the_original_database_into_the_last_one(original, later):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, DATABASE)
        changes: dict[str, bytes] = {}
        for content in later:
            file.write_bytes(original)
            patch(file, changes)
            digests = block_digests(file)
            file.write_bytes(content)
            changes = changes_since(digests, file, changes)

        file.write_bytes(original)
        patch(file, changes)

        assert file.read_bytes() == (later[-1] if later else original)


@pytest.mark.parametrize(
    "statement", ["select * from item", "create temp table t(x)", "pragma user_version", "select nope from item"]
)
def test_a_statement_that_writes_nothing_changes_nothing(database, statement):
    state: dict[str, bytes] = {}

    execute(database, statement, state)

    assert state == {}


@pytest.mark.parametrize(
    ("statement", "query", "observation"),
    [
        ("pragma user_version = 7", "pragma user_version", " 0\n 7"),
        ("vacuum", "select count(*) from item", " 0\n 2"),
        ("with n(x) as (select 'cup') insert into item select x, 1 from n", "select count(*) from item", " 0\n 3"),
        ("create index i on item(name)", "select count(*) from sqlite_master", " 0\n 2"),
    ],
)
def test_the_changes_of_all_writing_statements_are_kept(database, statement, query, observation):
    state: dict[str, bytes] = {}

    execute(database, statement, state)

    assert execute(database, query, state) == observation


def test_a_database_in_wal_mode_can_be_read_and_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("made.sqlite")) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("create table item(name text)")
        connection.commit()
    database, state = Path("made.sqlite").read_bytes(), {}

    execute(database, "insert into item values ('cup')", state)

    assert "cup" in execute(database, "select * from item", state)


def test_changes_are_kept_in_the_state_and_not_in_the_database(database):
    state: dict[str, bytes] = {}

    assert execute(database, "insert into item values ('cup', 3)", state).startswith("Empty DataFrame")

    assert execute(database, "select * from item", state) == "  0    1\npen  1.5\nink 12.0\ncup  3.0"
    assert execute(database, "select count(*) from item", {}) == " 0\n 2"


def test_an_undone_change_leaves_the_database_as_it_was(database):
    state: dict[str, bytes] = {}
    execute(database, "create table other(x)", state)
    execute(database, "drop table other", state)

    assert execute(database, "select name from sqlite_master", state) == "   0\nitem"


def test_a_change_beyond_the_limit_is_undone_and_reported(database):
    state: dict[str, bytes] = {}

    observation = execute(database, "insert into item values ('cup', 3)", state, bytes=10)

    assert observation.endswith("bytes, and 10 are kept.]")
    assert state == {}


@pytest.mark.parametrize(
    ("statement", "observation"),
    [
        ("select nope from item", "Error executing SQL: no such column: nope"),
        ("select 1; select 2", "Error executing SQL: You can only execute one statement at a time."),
        ("select count(*) from item where price > = 12", " 0\n 1"),
        ("select YEAR(CURDATE())", "   0\n2020"),
        ("select * from item where 0", "Empty DataFrame\nColumns: []\nIndex: []"),
    ],
)
def test_results_and_errors_of_statements_are_reported_as_text(database, statement, observation):
    assert execute(database, statement, {}).replace(" 2020", "2020") == observation


def test_an_endless_statement_is_interrupted(database):
    statement = "with recursive n(x) as (select 1 union all select x + 1 from n) select count(*) from n"

    assert execute(database, statement, {}, seconds=0.1) == f"SQL Timeout:\n{statement}"


def test_a_long_result_is_cut_to_fifty_rows(database):
    statement = "with recursive n(x) as (select 1 union all select x + 1 from n where x < 5000) select x from n"

    observation = execute(database, statement, {})

    assert observation.startswith("Truncated to 50 lines since returned response too long:  0\n 1\n")
    assert observation.splitlines()[-1] == "50"
