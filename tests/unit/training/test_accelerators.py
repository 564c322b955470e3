from collections.abc import Mapping
from typing import Any
from unittest.mock import Mock

import pytest
import ray

from turnmill.jobs import AgentTrainingJob, parse_job
from turnmill.jobs.reward_model import RewardModelSettings
from turnmill.jobs.verl_settings import TENSOR_PARALLEL
from turnmill.training import accelerators
from turnmill.training.accelerators import demands, describe, local_resources, missing_message


def job(mode: str, verl: Mapping[str, Any] | None = None, **resources: Any) -> AgentTrainingJob:
    return parse_job(
        {
            "apiVersion": "turnmill.dev/v1alpha1",
            "kind": "AgentTrainingJob",
            "metadata": {"name": "small"},
            "spec": {
                "model": {"path": "/m"},
                "environment": {"name": "babyai", "task": "goto", "count": 4},
                "training": {"steps": 2, "turnsPerStep": 256, "mode": mode},
                "resources": resources,
                "verl": verl or {},
            },
        }
    )


SEPARATE = job(
    "separate_async",
    train={"accelerator": "H100", "nodes": 2, "gpusPerNode": 8},
    rollout={"accelerator": "A40", "replicas": 4},
)


def test_a_separate_async_job_demands_training_and_rollout_machines():
    training, rollout = demands(SEPARATE)

    assert (training.machines, training.gpus, training.accelerator) == (2, 8, "H100")
    assert (rollout.machines, rollout.gpus, rollout.accelerator) == (4, 1, "A40")
    assert rollout.bundle == {"CPU": 2, "GPU": 1, "accelerator_type:A40": 1e-4}


@pytest.mark.parametrize(
    ("verl", "rollout_settings"), [({TENSOR_PARALLEL: 2}, {}), ({}, {"tensorParallel": 2})], ids=["verl", "field"]
)
def test_an_engine_may_span_several_gpus(verl: Mapping[str, Any], rollout_settings: Mapping[str, Any]):
    _, rollout = demands(job("separate_async", verl=verl, rollout={"replicas": 3, **rollout_settings}))

    assert (rollout.machines, rollout.gpus) == (3, 2)


@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
def test_other_modes_demand_only_training_machines(mode: str):
    (training,) = demands(job(mode, train={"gpusPerNode": 2}))

    assert training.bundle == {"CPU": 3, "GPU": 1}


def test_a_reward_model_has_machines_of_its_own():
    model = RewardModelSettings(path="/m", replicas=3, tensor_parallel=2, accelerator="L40S")
    asked = SEPARATE.model_copy(update={"spec": SEPARATE.spec.model_copy(update={"reward_model": model})})

    *_, reward = demands(asked)

    assert len(demands(asked)) == 3
    assert (reward.machines, reward.gpus, reward.accelerator) == (3, 2, "L40S")
    assert local_resources(asked, logical_gpus=True, cpus=2)["num_gpus"] == 2 * 8 + 4 + 3 * 2


def test_a_local_machine_offers_every_resource_that_the_job_demands():
    resources = local_resources(SEPARATE, logical_gpus=True, cpus=2)

    assert resources["num_gpus"] == 2 * 8 + 4
    assert resources["num_cpus"] >= 3 * 16 + 2 * 4
    assert set(resources["resources"]) == {"accelerator_type:H100", "accelerator_type:A40"}


def test_real_gpus_are_counted_by_ray_itself():
    assert local_resources(SEPARATE, logical_gpus=False, cpus=64)["num_gpus"] is None


def test_the_message_names_missing_machines_and_those_of_the_cluster():
    nodes = [
        {"Alive": True, "Resources": {"GPU": 8.0, "CPU": 96.0, "accelerator_type:H100": 1.0}},
        {"Alive": False, "Resources": {"GPU": 1.0, "accelerator_type:A40": 1.0}},
        {"Alive": True, "Resources": {"CPU": 4.0}},
    ]

    message = missing_message(demands(SEPARATE)[1:], nodes, 30)

    assert message.startswith("spec.resources.rollout asks for 4 machines with 1 GPU (A40): not free within 30 s.")
    assert "The Ray cluster has 8 x H100 (96 CPUs)." in message


def test_the_message_says_that_a_cluster_has_no_gpu():
    assert "has no machine with a GPU" in missing_message(demands(SEPARATE), [], 0)


def test_a_machine_without_a_known_accelerator_is_described():
    assert describe({"GPU": 2.0, "CPU": 8.0}) == "2 x GPU of no name (8 CPUs)"


@pytest.mark.parametrize("call", ["require", "wait_for_room"])
def test_what_was_reserved_is_waited_for_until_ray_says_that_it_is_free(monkeypatch, call):
    """It says so with a delay, and verl, which looks once, would find no GPU."""
    looks = iter([{}, {"GPU": 15.0}, {"GPU": 19.0}, {"GPU": 20.0}, {"GPU": 21.0}])
    removed: list[object] = []
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr(accelerators, "_reserve", Mock())
    monkeypatch.setattr(ray, "get", Mock())
    monkeypatch.setattr(ray.util, "remove_placement_group", removed.append)
    monkeypatch.setattr(ray, "available_resources", lambda: next(looks) if removed else pytest.fail("still reserved"))

    if call == "require":
        accelerators.require(SEPARATE, wait_seconds=1)
    else:
        accelerators.wait_for_room(accelerators.Demand("train", 1, 20, 1))

    assert next(looks) == {"GPU": 21.0}
