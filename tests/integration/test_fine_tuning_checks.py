"""`turnmill check` of jobs that fine-tune."""

import json
import shutil
from pathlib import Path

import pytest

from support.fine_tuning import save_conversations, save_model, write_job
from turnmill.cli.main import main


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


def check(job: Path, capsys: pytest.CaptureFixture[str], *overrides: str) -> str:
    code = main(["check", str(job), *(word for override in overrides for word in ("--set", override))])
    printed = capsys.readouterr()
    assert (code == 0) == (not printed.err)
    return printed.out + printed.err


def test_a_job_with_good_data_passes(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]):
    job = write_job(tmp_path / "job.yaml", model, save_conversations(tmp_path / "data.jsonl"))

    assert "sums fine-tunes" in (said := check(job, capsys))
    assert f"on {tmp_path / 'data.jsonl'} for 16 steps of 8 rows (cpu)." in said


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (None, "is not a file. Give the path of a .jsonl or .parquet file, one conversation per row."),
        ("", "contains no conversation. Put one on every line."),
        ({"prompt": "1"}, "row 1 has no messages. Give `messages`, a list of objects with role and content."),
        ({"messages": [{"role": "user", "content": " 1"}]}, "row 1 has no message of the assistant. Add one, or take"),
    ],
)
def test_data_that_cannot_be_learned_from_is_refused_with_one_sentence(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str], row: object, sentence: str
):
    data = tmp_path / "data.jsonl"
    if row is not None:
        data.write_text(json.dumps(row) if row else "")

    said = check(write_job(tmp_path / "job.yaml", model, data), capsys, "algorithm.validationData=null")

    assert "has one problem" in said
    assert f"spec.algorithm.data: '{data}'" in said
    assert sentence in said


def test_rows_that_are_all_too_long_are_refused(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]):
    job = write_job(tmp_path / "job.yaml", model, save_conversations(tmp_path / "data.jsonl"))

    said = check(job, capsys, "algorithm.maxLength=10")

    assert "spec.algorithm.maxLength: 10 is less than all rows have. Set it to 20 or more." in said


def test_a_model_without_a_chat_template_is_refused(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]):
    shutil.copytree(model, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").unlink()
    job = write_job(tmp_path / "job.yaml", tmp_path / "model", save_conversations(tmp_path / "data.jsonl"))

    assert "spec.model.path: the model has no chat template" in check(job, capsys)


def test_a_run_that_is_none_is_refused_before_any_training(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
):
    job = write_job(tmp_path / "job.yaml", model, save_conversations(tmp_path / "data.jsonl"))

    said = check(job, capsys, "algorithm.data=null", f"algorithm.fromRun={tmp_path / 'none'}")

    assert (
        f"spec.algorithm.fromRun: '{tmp_path / 'none'}' is no folder of a run. Give one that `turnmill run` has made."
        in said
    )


def test_a_setting_that_the_engine_does_not_have_is_refused(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
):
    job = write_job(tmp_path / "job.yaml", model, save_conversations(tmp_path / "data.jsonl"))

    said = check(job, capsys, "verl={optim.lr_warmup_step: 3}")

    assert "spec.verl.optim.lr_warmup_step: 3 is no setting of verl's engine for fine-tuning. Did you mean" in said
