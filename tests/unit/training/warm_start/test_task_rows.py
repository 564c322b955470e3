import pytest

from turnmill.core.errors import SettingsError
from turnmill.jobs.model import WarmStart
from turnmill.tasks import create_source
from turnmill.training.warm_start.task_rows import build_task_rows, teacher_of


def test_what_is_said_is_imitated_and_what_tools_answer_is_only_read():
    tokenizer, rows = build_task_rows(teacher_of(create_source("arithmetic")), WarmStart(turns=200))

    assert len(rows) == 200
    said = {tokenizer.decode(row.answer_ids) for row in rows}
    assert not any("<result>" in text for text in said)
    assert {text[:7] for text in said} == {"answer:", "<python"}
    # A call ends where the tool takes over, an answer with the end of the turn.
    assert all(text.endswith("</python>" if text.startswith("<python>") else tokenizer.eos_token) for text in said)
    read = [tokenizer.decode(row.prompt_ids) for row in rows]
    assert any(text.endswith("\n</result>\n") for text in read)
    assert not any(tokenizer.unk_token in text for text in [*said, *read])


def test_tasks_without_a_teacher_cannot_be_imitated(tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"prompt": "1+1", "answer": "2"}\n' * 3)

    with pytest.raises(SettingsError, match="have no demonstrations to imitate"):
        teacher_of(create_source("dataset", {"path": str(file)}))
