import json
from pathlib import Path

import pytest

from support.chat_tokenizers import byte_level_tokenizer
from turnmill.core.errors import SettingsError
from turnmill.jobs.fine_tuning import FineTuningSettings
from turnmill.training.sft.rows import Rows, fitting, read_rows
from turnmill.training.sft.tokens import TokenRow


def row(length: int) -> TokenRow:
    return TokenRow((length,) * length, (0, *[1] * (length - 1)))


def test_rows_are_taken_epoch_by_epoch_whatever_the_size_of_batches():
    rows = Rows(tuple(map(row, range(2, 9))), 0)

    taken = [each for step in range(1, 8) for each in rows.batch(step, 3, seed=5)]

    epochs = [taken[start : start + 7] for start in (0, 7, 14)]
    assert [set(epoch) for epoch in epochs] == [set(rows.kept)] * 3
    assert epochs[0] != epochs[1]
    assert rows.batch(4, 3, seed=5) == taken[9:12]
    assert rows.batch(1, 3, seed=6) != taken[:3]


def test_a_batch_may_be_larger_than_the_data():
    rows = Rows((row(2), row(3)), 0)

    assert sorted(len(each.ids) for each in rows.batch(1, 6, seed=0)) == [2, 2, 2, 3, 3, 3]


def test_rows_that_are_too_long_are_left_out_and_counted():
    assert fitting(map(row, (4, 2, 9)), 4, "algorithm") == Rows((row(4), row(2)), 1)


def test_data_of_rows_that_are_all_too_long_is_refused_with_the_shortest():
    with pytest.raises(SettingsError, match=r"algorithm.maxLength: 3 is less than all rows have. Set it to 4 or more."):
        fitting(map(row, (9, 4)), 3, "algorithm")


def test_a_model_without_a_chat_template_is_refused(tmp_path: Path):
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"messages": [{"role": "assistant", "content": "hello"}]}))

    with pytest.raises(SettingsError, match=r"^model.path: the model has no chat template"):
        read_rows(FineTuningSettings(data=str(data)), byte_level_tokenizer(None), "algorithm")
