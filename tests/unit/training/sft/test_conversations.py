import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from turnmill.core.errors import SettingsError
from turnmill.training.sft.conversations import parse_conversation, read_conversations

QUESTION, ANSWER = {"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "2"}


def call(arguments: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": "add", "arguments": arguments}}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "has no messages"),
        ({"messages": []}, "has no messages"),
        ({"messages": "hello"}, "has no messages"),
        ({"messages": ["hello"]}, "has no messages"),
        ({"messages": [{"content": "2"}]}, "has a message without a role"),
        ({"messages": [QUESTION]}, "has no message of the assistant"),
        ({"messages": [QUESTION, ANSWER | {"loss": False}]}, "has no answer that is learned from"),
        ({"messages": [QUESTION, ANSWER], "tools": "none"}, "has tools that are no list of objects"),
    ],
)
def test_a_row_that_nothing_is_learned_from_is_refused(row: dict[str, object], reason: str):
    with pytest.raises(SettingsError, match=f"data, row 3 {reason}"):
        parse_conversation(row, "data, row 3")


@pytest.mark.parametrize("mark", [{"loss": False}, {"weight": 0}])
def test_an_answer_with_a_mark_is_read_and_not_learned(mark: dict[str, object]):
    found = parse_conversation({"messages": [QUESTION, ANSWER | mark, QUESTION, ANSWER | {"weight": 1}]}, "")

    assert found.learned == (3,)
    assert found.messages == (QUESTION, ANSWER, QUESTION, ANSWER)


def test_arguments_of_calls_are_objects_and_every_message_has_a_content():
    calls = [call('{"a": 1}'), call({"a": 1}), call("no JSON")]
    found = parse_conversation({"messages": [QUESTION, {"role": "assistant", "tool_calls": calls}]}, "")

    assert found.messages[1] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [call({"a": 1}), call({"a": 1}), call("no JSON")],
    }


def test_both_kinds_of_files_give_the_same_conversations(tmp_path: Path):
    tools = [{"type": "function", "function": {"name": "add"}}]
    rows = [
        {"messages": [QUESTION, ANSWER], "tools": tools},
        {"messages": [QUESTION, {"role": "assistant", "content": None, "tool_calls": [call({"a": 1})]}], "tools": None},
    ]
    lines, table = tmp_path / "rows.jsonl", tmp_path / "rows.parquet"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    parquet.write_table(pa.Table.from_pylist(rows), table)

    of_lines, of_table = read_conversations(lines, "data"), read_conversations(table, "data")

    assert [(c.messages, c.tools) for c in of_lines] == [(c.messages, c.tools) for c in of_table]
    assert of_lines[0].tools == tuple(tools)
    assert of_lines[1].messages[1]["content"] == ""


@pytest.mark.parametrize(("text", "reason"), [(None, "is not a file"), ("\n", "contains no conversation")])
def test_a_missing_or_empty_file_is_refused(tmp_path: Path, text: str | None, reason: str):
    file = tmp_path / "rows.jsonl"
    if text is not None:
        file.write_text(text)

    with pytest.raises(SettingsError, match=rf"^algorithm.data: '{file}' {reason}"):
        read_conversations(file, "algorithm.data")
