"""What a worker of `turnmill gateway` finds in a model's folder."""

from pathlib import Path

import pytest

from support.gateway import bpe_tokenizer
from turnmill.cli.gateway_worker import _processor


def test_a_model_without_a_processor_reads_text_alone(tmp_path: Path):
    bpe_tokenizer().save_pretrained(tmp_path)

    assert _processor(tmp_path) is None


def test_a_processor_that_cannot_be_loaded_is_logged_and_the_model_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    bpe_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "processor_config.json").write_text('{"processor_class": "Qwen2VLProcessor"')

    assert _processor(tmp_path) is None
    assert "Pictures are refused, as the model's processor cannot be loaded" in caplog.messages
