import copy
from typing import Any

import pytest
import yaml

from turnmill.core.errors import SettingsError
from turnmill.jobs.team import KEY, TeamSettings, parse_team, run_dir


def pod() -> dict[str, Any]:
    return {
        "spec": {
            "containers": [
                {"name": "ray", "image": "trainer", "volumeMounts": [{"name": "runs", "mountPath": "/runs"}]}
            ],
            "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}],
        }
    }


def group(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "accelerator": name.upper(), "maxReplicas": 4, "gpusPerNode": 8, "template": pod()} | changes


TEAM: dict[str, Any] = {
    "rayVersion": "2.60.0",
    "head": {"template": pod()},
    "workerGroups": [group("h100"), group("a40", device="cpu", rayStartParams={"num-gpus": "1"})],
    "storeUrl": "redis://store:6379",
    "toolServerUrl": "http://tools:5500",
    "cleanUp": {"template": pod()},
}


def parse(team: dict[str, Any]) -> TeamSettings:
    return parse_team({KEY: yaml.safe_dump(team)})


def test_worker_groups_are_found_by_accelerator():
    team = parse(TEAM)

    assert [found.name if (found := team.group_for(kind)) else None for kind in ("A40", None, "B200")] == [
        "a40",
        "h100",
        None,
    ]
    assert team.accelerators == "H100, A40"


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no groups": ({"workerGroups": []}, "workerGroups: "),
    "an unknown field": ({"headGroup": {}}, "headGroup: Extra inputs"),
    "the same accelerator twice": ({"workerGroups": [group("h100"), group("b", accelerator="H100")]}, "H100, H100"),
    "the same name twice": ({"workerGroups": [group("a"), group("a", accelerator="B")]}, "the same name"),
    "no shared storage": (
        {"head": {"template": {"spec": {"containers": [{"name": "ray"}]}}}},
        "head.template mounts nothing at /runs",
    ),
    "an empty pod": (
        {"workerGroups": [group("h100", template={})]},
        "workerGroups.h100.template has no container",
    ),
    "an invalid version": ({"rayVersion": "latest"}, "rayVersion: "),
    "a label of the operator": (
        {"runLabels": {"turnmill.dev/job": "other"}},
        "turnmill.dev/job: the operator or Kueue sets them",
    ),
    "a label of a queue": (
        {"runLabels": {"kueue.x-k8s.io/queue-name": "q"}},
        "kueue.x-k8s.io/queue-name: the operator",
    ),
    "a label that is none": ({"runLabels": {"queue": "a b"}}, "runLabels.queue"),
    "a Ray without tokens": ({"rayVersion": "2.51.9"}, "rayVersion: Value error, 2.51.9 has no tokens"),
}


@pytest.mark.parametrize(("change", "message"), BROKEN.values(), ids=BROKEN)
def test_invalid_settings_of_a_team_are_refused(change: dict[str, Any], message: str):
    with pytest.raises(SettingsError, match="ConfigMap turnmill-team") as caught:
        parse(copy.deepcopy(TEAM) | change)

    assert message in str(caught.value)


@pytest.mark.parametrize(("data", "message"), [({}, "has no key team"), ({KEY: "a: b: c"}, "line 1")])
def test_a_config_map_without_settings_is_refused(data: dict[str, str], message: str):
    with pytest.raises(SettingsError, match=message):
        parse_team(data)


def test_a_recreated_job_of_the_same_name_has_another_run_folder():
    folders = {run_dir("team-a", "job", uid) for uid in ("0123456789", "9876543210")}

    assert folders == {"/runs/team-a/job-01234567", "/runs/team-a/job-98765432"}
