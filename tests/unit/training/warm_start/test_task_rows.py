import re

import pytest
import torch

from turnmill.core.errors import SettingsError
from turnmill.jobs.model import WarmStart
from turnmill.tasks import create_source
from turnmill.tasks.arithmetic import CALL_SHARE, WRONG_NUMBER_SHARE
from turnmill.training.warm_start.task_rows import build_task_rows, teacher_of


def test_responses_are_imitated_and_tool_observations_are_only_part_of_prompts():
    tokenizer, rows = build_task_rows(teacher_of(create_source("arithmetic")), WarmStart(turns=200))

    assert len(rows) == 200
    responses = {tokenizer.decode(row.answer_ids) for row in rows}
    assert not any("<result>" in text for text in responses)
    assert {text[:7] for text in responses} == {"answer:", "<python"}
    # A tool call ends with its closing tag, an answer with the end-of-turn token.
    assert all(text.endswith("</python>" if text.startswith("<python>") else tokenizer.eos_token) for text in responses)
    prompts = [tokenizer.decode(row.prompt_ids) for row in rows]
    assert any(text.endswith("\n</result>\n") for text in prompts)
    assert not any(tokenizer.unk_token in text for text in [*responses, *prompts])


def test_tasks_without_demonstrations_are_refused(tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"prompt": "1+1", "answer": "2"}\n' * 3)

    with pytest.raises(SettingsError, match="have no demonstrations to imitate"):
        teacher_of(create_source("dataset", {"path": str(file)}))


def test_a_call_is_imitated_with_the_distribution_of_its_first_number():
    tokenizer, rows = build_task_rows(teacher_of(create_source("arithmetic")), WarmStart(turns=200))
    calls = [row for row in rows if tokenizer.decode(row.answer_ids).startswith("<python>")]
    begin, *digits = tokenizer.convert_tokens_to_ids(["<python>", *"0123456789"])

    for row in calls:
        prompt = tokenizer.decode(row.prompt_ids)
        right = [int(digit) for digit in re.findall(r"\d\d", prompt)[0]]
        assert row.action_targets.shape == (len(row.answer_ids), len(tokenizer))
        assert row.action_targets[0, begin] == pytest.approx(CALL_SHARE)
        # The first two tokens are `<python>` and `print(`.
        assert row.action_targets[2, digits[0]] == 0
        assert row.action_targets[2, digits[right[0]]] == pytest.approx(1 - WRONG_NUMBER_SHARE + WRONG_NUMBER_SHARE / 9)
        assert torch.allclose(row.action_targets.sum(1), torch.ones(len(row.answer_ids)))
        # Everything after it is copied.
        assert (row.action_targets[4:].amax(1) == 1).all()
        assert (row.action_targets[4:].argmax(1) == torch.tensor(row.answer_ids[4:])).all()
