import sqlite3

import pytest

from turnmill.core.errors import ToolFailedError
from turnmill.sandboxes.base import SandboxResult
from turnmill.testing.tool_calls import Dialogue, ScriptedSandbox, make_tool
from turnmill.tools.sandboxed.packing import unpack
from turnmill.tools.sandboxed.session_result import pack_session_result
from turnmill.tools.sql import NO_STATEMENT


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "shop.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("create table item(name text)")
    connection.commit()
    connection.close()
    return path


def answer(text: str, after: dict[str, bytes] | None = None) -> SandboxResult:
    return SandboxResult(0, value=pack_session_result({"text": text}, {}, after or {}))


@pytest.mark.parametrize(
    ("action", "statement"),
    [
        ("<sql>select 1</sql> <sql> select 2 </sql>", "select 2"),
        ("<sql>a<sql>b</sql>", "b"),
        ("<sql>unclosed", None),
        ("select 1</sql>", None),
        ("<solution>select 1</solution>", None),
        ("<sql></sql>", ""),
    ],
)
def test_the_last_statement_is_taken(action, statement):
    assert make_tool("sql").parse(action) == statement


@pytest.mark.feature("verl-tool", "SQL")
async def test_the_result_comes_with_the_statement_and_the_turns_left(database):
    tool = make_tool("sql", ScriptedSandbox(answer(" 0\n 1")), SQL_DB_FOLDER=str(database.parent))
    dialogue = Dialogue(tool, {"db_path": str(database), "turns_left": 4})

    await dialogue.say("<sql>select 1</sql>")

    assert dialogue.result.observation == {
        "obs": "\n\n<observation> 0\n 1\n<reminder>You have 4 turns left to complete the task.</reminder>"
        "</observation>\n\n",
        "parsed_sql": "select 1",
    }
    assert (dialogue.result.done, dialogue.result.valid) == (False, True)


async def test_an_empty_statement_is_answered_without_execution():
    observation = await Dialogue(make_tool("sql")).say("<sql> </sql>")

    assert observation.startswith(f"\n\n<observation>{NO_STATEMENT}\n<reminder>You have 0 turns left")


async def test_a_fence_around_the_statement_is_removed(database):
    sandbox = ScriptedSandbox(answer(""))
    await Dialogue(make_tool("sql", sandbox, SQL_DB_FOLDER=str(database.parent)), {"db_path": str(database)}).say(
        "<sql>```sql\nselect 1\n```</sql>"
    )

    (task,) = sandbox.tasks
    assert unpack(task.program.argument)["statement"] == b"select 1"
    assert task.copies == {"database.sqlite": str(database)}


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (SandboxResult(None, limit="time"), "SQL Timeout:\nselect 1"),
        (SandboxResult(None, limit="memory"), "Error executing SQL: stopped at its limit of memory"),
        (SandboxResult(0, value=b"nonsense"), "Error executing SQL: "),
    ],
)
async def test_a_failed_statement_is_reported(database, outcome, text):
    dialogue = Dialogue(
        make_tool("sql", ScriptedSandbox(outcome), SQL_DB_FOLDER=str(database.parent)), {"db_path": str(database)}
    )

    assert f"<observation>{text}\n<reminder>" in await dialogue.say("<sql>select 1</sql>")
    assert dialogue.result.change is None


async def test_a_call_fails_if_the_database_changed_since_the_trajectory_began(database):
    sandbox = ScriptedSandbox(answer("", {"length": b"1", "block/0": b"x"}))
    dialogue = Dialogue(make_tool("sql", sandbox, SQL_DB_FOLDER=str(database.parent)), {"db_path": str(database)})
    await dialogue.say("<sql>insert into item values ('x')</sql>")

    database.write_bytes(database.read_bytes() + b"more")

    with pytest.raises(ToolFailedError, match="another than the one this trajectory began with"):
        await dialogue.say("<sql>select 1</sql>")


@pytest.mark.parametrize("extra", [{"db_id": "shop"}, {"db_id": "shop.sqlite"}, {"db_path": "shop.sqlite"}])
async def test_databases_are_found_in_their_folder(database, extra):
    tool = make_tool("sql", ScriptedSandbox(answer("found")), SQL_DB_FOLDER=str(database.parent))

    assert "found" in await Dialogue(tool, extra).say("<sql>select 1</sql>")


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({}, "The call names no database: db_path and db_id are missing."),
        ({"db_id": 3}, "The call names no database: db_path and db_id are missing."),
        ({"db_path": "nothing.sqlite"}, "The database file nothing.sqlite does not exist."),
        ({"db_id": "nothing"}, "The database file nothing does not exist."),
    ],
)
async def test_a_missing_database_is_an_observation(database, extra, text):
    dialogue = Dialogue(make_tool("sql", SQL_DB_FOLDER=str(database.parent)), extra | {"turns_left": 2})

    observation = await dialogue.say("<sql>select 1</sql>")

    reminder = "<reminder>You have 2 turns left to complete the task.</reminder>"
    assert observation == f"\n\n<observation>{text}\n{reminder}</observation>\n\n"
    assert (dialogue.result.done, dialogue.result.valid, dialogue.result.change) == (False, True, None)


async def test_a_database_that_a_trajectory_has_changed_must_not_be_missing(database):
    sandbox = ScriptedSandbox(answer("done", {"length": b"1", "block/0": b"x"}))
    dialogue = Dialogue(make_tool("sql", sandbox, SQL_DB_FOLDER=str(database.parent)), {"db_path": str(database)})
    await dialogue.say("<sql>delete from t</sql>")
    database.unlink()

    with pytest.raises(ToolFailedError, match="that this trajectory began with is gone"):
        await dialogue.say("<sql>select 1</sql>")


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"db_path": "../secret.sqlite"}, "is outside SQL_DB_FOLDER"),
        ({"db_path": "/etc/passwd"}, "is outside SQL_DB_FOLDER"),
        ({"db_path": "nothing.sqlite"}, "is no folder"),
    ],
)
async def test_an_unavailable_database_fails_the_call(database, extra, message):
    folder = database.parent / "databases"
    tool = make_tool("sql", SQL_DB_FOLDER=str(folder))

    with pytest.raises(ToolFailedError, match=message):
        await Dialogue(tool, extra).say("<sql>select 1</sql>")


async def test_a_database_beyond_the_limit_is_refused(database):
    tool = make_tool("sql", SQL_MAX_DB_BYTES="100", SQL_DB_FOLDER=str(database.parent))

    with pytest.raises(ToolFailedError, match=r"more than SQL_MAX_DB_BYTES \(100\)"):
        await Dialogue(tool, {"db_path": str(database)}).say("<sql>select 1</sql>")


async def test_without_a_folder_no_database_is_opened(database):
    with pytest.raises(ToolFailedError, match="Name it with --set SQL_DB_FOLDER=FOLDER"):
        await Dialogue(make_tool("sql"), {"db_path": str(database)}).say("<sql>select 1</sql>")


async def test_a_link_that_leads_out_of_the_folder_is_refused(database):
    folder = database.parent / "databases"
    folder.mkdir()
    (folder / "link.sqlite").symlink_to(database)

    for extra in ({"db_path": "link.sqlite"}, {"db_id": "link"}):
        with pytest.raises(ToolFailedError, match="is outside SQL_DB_FOLDER"):
            await Dialogue(make_tool("sql", SQL_DB_FOLDER=str(folder)), extra).say("<sql>select 1</sql>")
