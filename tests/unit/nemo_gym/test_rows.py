"""Data files of NeMo Gym as tasks."""

import json
from pathlib import Path

import pytest

from turnmill.core.errors import SettingsError
from turnmill.nemo_gym.rows import Rows
from turnmill.tasks import Answer, create_source

NAME = "turnmill.nemo_gym.rows:Rows"


def row(number: int) -> dict[str, object]:
    items = [{"role": "developer", "content": "Be short."}, {"role": "user", "content": [{"text": f"{number}?"}]}]
    return {"id": number, "responses_create_params": {"input": items}}


def rows_of(folder: Path, *rows: object, **options: object) -> Rows:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = create_source(NAME, {"path": str(file), "url": "http://127.0.0.1:8000", **options}, seed=3)
    assert isinstance(source, Rows)
    return source


def test_a_program_gets_the_row_as_it_is_and_the_servers_address(tmp_path: Path):
    source = rows_of(tmp_path, row(0), maxSteps=6)

    task = source.training(0)

    assert task.extra_info == {"row": row(0), "url": "http://127.0.0.1:8000", "maxSteps": 6, "timeoutSeconds": 300}
    assert task.messages == [{"role": "developer", "content": "Be short."}, {"role": "user", "content": "0?"}]


def test_an_input_may_be_a_text_or_have_calls(tmp_path: Path):
    text = {"responses_create_params": {"input": "Hi."}}
    calls = {"responses_create_params": {"input": [{"type": "function_call", "name": "add"}, {"role": "user"}]}}

    source = rows_of(tmp_path, text, calls, validationTasks=1)

    assert source.training(0).messages == [{"role": "user", "content": "Hi."}]
    assert source.validation(0).messages == [{"role": "user", "content": ""}]


def test_every_epoch_has_each_row_for_training_once_in_another_order(tmp_path: Path):
    source = rows_of(tmp_path, *map(row, range(12)), validationTasks=2)

    epochs = [[source.training(10 * epoch + number).row["id"] for number in range(10)] for epoch in range(2)]

    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 2
    assert epochs[0] != epochs[1]
    assert [source.validation(number).row["id"] for number in range(3)] == [10, 11, 10]


def test_validations_may_have_a_file_of_their_own(tmp_path: Path):
    (tmp_path / "validation.jsonl").write_text(json.dumps(row(7)))

    source = rows_of(tmp_path, row(0), validationPath=str(tmp_path / "validation.jsonl"))

    assert (source.training(0).row["id"], source.validation(0).row["id"]) == (0, 7)


def test_rows_that_do_not_fit_are_dropped(tmp_path: Path):
    source = rows_of(tmp_path, *map(row, range(3)), validationTasks=0)

    source.keep(lambda task: task.row["id"] == 1)

    assert {source.training(number).row["id"] for number in range(3)} == {1}
    with pytest.raises(SettingsError, match="no row of"):
        source.keep(lambda _: False)


@pytest.mark.parametrize("params", [None, [], {}, {"input": None}, {"input": ["Hi."]}])
def test_a_row_without_a_conversation_is_refused(tmp_path: Path, params: object):
    with pytest.raises(SettingsError, match=r"rows.jsonl', row 2 has no responses_create_params.input"):
        rows_of(tmp_path, row(0), {"responses_create_params": params})


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://"])
def test_an_address_without_http_is_refused(tmp_path: Path, url: str):
    with pytest.raises(SettingsError, match=r"environment.options.url"):
        rows_of(tmp_path, row(0), url=url)


def test_rewards_are_those_of_the_resources_server(tmp_path: Path):
    source = rows_of(tmp_path, row(0))

    with pytest.raises(SettingsError, match=r"agent.reward must be program"):
        source.reward(source.training(0), Answer("5", "5", "5"))
    with pytest.raises(SettingsError, match="validationTasks"):
        source.validation(0)
