"""What `turnmill check` finds in the data of a fine-tuning."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.chat_tokenizers import byte_level_tokenizer
from support.jobs import job, sft_job
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.values import Values
from turnmill.training.sft.checks import problems


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return conversation(tmp_path / "data.jsonl", "one and two")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    byte_level_tokenizer().save_pretrained(folder)
    return folder


def conversation(file: Path, answer: str) -> Path:
    file.write_text(json.dumps({"messages": [{"role": "assistant", "content": answer}]}))
    return file


def found(values: dict[str, Any], place: str = "spec.algorithm") -> list[tuple[str, str]]:
    return [(problem.path, problem.rule) for problem in problems(Values(values, AgentTrainingJob), place)]


def test_rows_are_counted_in_the_tokens_of_a_model_that_is_here(data: Path, model: Path):
    here = sft_job(model__path=str(model), algorithm__data=str(data))

    assert found(here) == []
    assert found(sft_job(model__path=str(model), algorithm__data=str(data), algorithm__maxLength=2)) == [
        ("spec.algorithm.maxLength", "2 is less than all rows have")
    ]


def test_rows_of_the_validation_are_counted_too(tmp_path: Path, data: Path, model: Path):
    long = conversation(tmp_path / "long.jsonl", "one and two " * 30)
    settings = {"algorithm__data": str(data), "algorithm__validationData": str(long), "algorithm__maxLength": 32}

    assert found(sft_job(model__path=str(model), **settings)) == [
        ("spec.algorithm.maxLength", "32 is less than all rows have")
    ]


@pytest.mark.parametrize("path", ["somebody/model-of-the-hub", "{folder}"])
def test_of_a_model_without_a_tokenizer_here_the_conversations_alone_are_read(tmp_path: Path, data: Path, path: str):
    there = {"model__path": path.format(folder=tmp_path), "algorithm__maxLength": 2}
    (tmp_path / "none.jsonl").write_text("{}")

    assert found(sft_job(algorithm__data=str(data), algorithm__validationData=str(data), **there)) == []
    ((place, rule),) = found(sft_job(algorithm__data=str(tmp_path / "none.jsonl"), **there))
    assert place == "spec.algorithm.data"
    assert rule.endswith("row 1 has no messages")


def test_the_data_before_a_training_are_read_for_a_model_that_is_yet_to_be_made(tmp_path: Path, data: Path):
    (tmp_path / "none.jsonl").write_text("{}")

    def of(file: Path) -> list[tuple[str, str]]:
        return found(job(model={"warmStart": {}, "fineTune": {"data": str(file)}}), "spec.model.fineTune")

    assert of(data) == []
    assert [place for place, _ in of(tmp_path / "none.jsonl")] == ["spec.model.fineTune.data"]


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config.json": "{"},
        {"tokenizer_config.json": "{}"},
        {"tokenizer_config.json": "{}", "tokenizer.json": "{}"},
    ],
    ids=["cut off", "no tokenizer", "damaged"],
)
def test_a_tokenizer_that_does_not_load_is_a_problem_of_the_model(tmp_path: Path, data: Path, files: dict[str, str]):
    for name, content in files.items():
        (tmp_path / name).write_text(content)

    ((place, rule),) = found(sft_job(model__path=str(tmp_path), algorithm__data=str(data)))

    assert place == "spec.model.path"
    assert "has no tokenizer that loads" in rule


def test_transformers_is_imported_for_a_tokenizer_alone():
    program = "import sys, turnmill.training.sft.checks; print('transformers' in sys.modules)"
    path = [folder for folder in sys.path if folder]

    result = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}; {program}"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip

    assert result.stdout.strip() == "False"
