"""A tiny model without knowledge, conversations that it can learn, and jobs that fine-tune it."""

import json
from collections.abc import Mapping
from pathlib import Path

import yaml

from turnmill.jobs.model import WarmStart
from turnmill.training.warm_start.cloning import build_model
from turnmill.training.warm_start.tokenizer import build_tokenizer

NUMBERS = 6


def save_model(folder: Path) -> Path:
    """Write a model with random weights that knows small numbers by name."""
    tokenizer = build_tokenizer([*(f" {n}" for n in range(2 * NUMBERS)), " what is plus"])
    build_model(len(tokenizer), WarmStart(hidden_size=32)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_conversations(file: Path) -> Path:
    """Write a conversation of two sums for each pair of numbers."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": f" what is {a} plus {b}"},
                {"role": "assistant", "content": f" {a + b}"},
                {"role": "user", "content": f" what is {b} plus {a}"},
                {"role": "assistant", "content": f" {a + b}"},
            ]
        }
        for a in range(NUMBERS)
        for b in range(NUMBERS)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def write_job(file: Path, model: Path, data: Path, **training: object) -> Path:
    """Write a job that fine-tunes the model on the conversations, with a validation on the same ones."""
    algorithm: Mapping[str, object] = {
        "type": "sft", "data": str(data), "validationData": str(data),
        "learningRate": 3e-3, "batchSize": 8, "maxLength": 64,
    }  # fmt: skip
    job = {
        "apiVersion": "turnmill.dev/v1alpha1",
        "kind": "AgentTrainingJob",
        "metadata": {"name": "sums"},
        "spec": {
            "model": {"path": str(model)},
            "algorithm": algorithm,
            "training": {"steps": 16, "checkpointEvery": 4} | training,
            "resources": {"device": "cpu"},
        },
    }
    file.write_text(yaml.safe_dump(job))
    return file
