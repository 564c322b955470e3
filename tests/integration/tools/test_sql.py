import sqlite3

import pytest

from turnmill.testing.tool_calls import NewDialogue

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "shop.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("create table item(name text, price real)")
    connection.executemany("insert into item values (?, ?)", [("pen", 1.5), ("ink", 12)])
    connection.commit()
    connection.close()
    return path


def wrapped(result: str) -> str:
    reminder = "<reminder>You have 2 turns left to complete the task.</reminder>"
    return f"\n\n<observation>{result}\n{reminder}</observation>\n\n"


@pytest.mark.feature("verl-tool", "SQL")
async def test_a_trajectory_has_its_own_copy_of_the_database(new_dialogue: NewDialogue, database):
    before = database.read_bytes()
    extra = {"db_path": str(database), "turns_left": 2}
    one, other = (
        new_dialogue("sql", extra, SQL_DB_FOLDER=str(database.parent)),
        new_dialogue("sql", extra, SQL_DB_FOLDER=str(database.parent)),
    )

    await one.say("<sql>insert into item values ('cup', 3)</sql>")
    await one.say("<sql>update item set price = 2 where name = 'pen'</sql>")

    assert await one.say("<sql>select * from item</sql>") == wrapped("  0    1\npen  2.0\nink 12.0\ncup  3.0")
    assert await other.say("<sql>select * from item</sql>") == wrapped("  0    1\npen  1.5\nink 12.0")
    assert database.read_bytes() == before


async def test_statements_cannot_reach_other_files(new_dialogue: NewDialogue, database, tmp_path):
    (tmp_path / "secret.sqlite").write_bytes(database.read_bytes())
    dialogue = new_dialogue("sql", {"db_path": str(database)}, SQL_DB_FOLDER=str(database.parent))

    observation = await dialogue.say(f"<sql>attach '{tmp_path}/secret.sqlite' as secret</sql>")

    assert "Error executing SQL: unable to open database" in observation


async def test_an_endless_statement_times_out(new_dialogue: NewDialogue, database):
    dialogue = new_dialogue(
        "sql",
        {"db_path": str(database), "turns_left": 2},
        SQL_TIMEOUT_SECONDS="0.5",
        SQL_DB_FOLDER=str(database.parent),
    )
    statement = "with recursive n(x) as (select 1 union all select x + 1 from n) select count(*) from n"

    assert await dialogue.say(f"<sql>{statement}</sql>") == wrapped(f"SQL Timeout:\n{statement}")
