import logging
from pathlib import Path

import pytest

from support.jobs import tool_job
from support.models import model_without_weights
from turnmill.jobs import AgentTrainingJob
from turnmill.runs.memory_settings import with_memory_settings
from turnmill.training.accelerators import RayNode

NODES: list[RayNode] = [
    {"Alive": True, "Resources": {"CPU": 8}},
    {"Alive": True, "Resources": {"CPU": 8, "GPU": 1, "accelerator_type:H100": 1}},
]


@pytest.fixture
def job(tmp_path: Path) -> AgentTrainingJob:
    return AgentTrainingJob.model_validate(tool_job(model={"path": str(model_without_weights(tmp_path))}))


def test_a_run_takes_settings_that_fit_the_gpus_of_its_cluster(job, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        resources = with_memory_settings(job, tmp_path, NODES).spec.resources

    assert (resources.train.offload, resources.train.micro_batch_tokens) == ("none", 16_384)
    assert (resources.rollout.tensor_parallel, resources.rollout.gpu_memory_share) == (1, 0.5)
    assert "Settings chosen for the memory of GPUs" in caplog.text


def test_a_run_on_gpus_of_several_kinds_keeps_the_usual_settings(job, tmp_path):
    other: RayNode = {"Alive": True, "Resources": {"GPU": 1, "accelerator_type:A40": 1}}

    assert with_memory_settings(job, tmp_path, [*NODES, other]) == job


def test_a_model_that_cannot_be_estimated_is_trained_with_the_usual_settings(job, tmp_path, caplog):
    (tmp_path / "config.json").write_text('{"model_type": "of the future"}')

    assert with_memory_settings(job, tmp_path, NODES) == job
    assert "The memory of GPUs could not be estimated" in caplog.text
