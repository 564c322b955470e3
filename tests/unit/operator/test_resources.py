"""RayJobs follow the rules of KubeRay and Kueue, which old releases of KubeRay do not check themselves."""

import json
from typing import Any

import pytest
import yaml

from support.ray_jobs import UID, pod_template, raw_job, raw_team
from turnmill.jobs import parse_job
from turnmill_operator.placement import Placement, place
from turnmill_operator.resources import build_clean_up, build_ray_job
from turnmill_operator.status import DesiredCondition
from turnmill_operator.views import job_view, team_view


def ray_job(
    job: dict[str, Any], *, team: dict[str, Any] | None = None, attempt: int = 1, **options: Any
) -> dict[str, Any]:
    view, settings = job_view(job), team_view(team or raw_team())
    assert view.job is not None
    assert not isinstance(settings, Exception)
    placement = place(view.job.spec, settings)
    assert isinstance(placement, Placement)
    given = {"suspend": False, "started": True, **options}
    return build_ray_job(view, settings, placement, attempt=attempt, **given)


SEPARATE = {
    "training__mode": "separate_async",
    "resources": {"train": {"accelerator": "H100"}, "rollout": {"accelerator": "A40", "replicas": 2}},
}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "own": ({}, {}),
    "queued": ({"queue": "team-a"}, {}),
    "shared": ({"cluster": "shared"}, {"team": raw_team(sharedCluster="team")}),
    "suspended": ({}, {"suspend": True, "started": False}),
    "separate": (SEPARATE, {}),
}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def spec(request: pytest.FixtureRequest) -> dict[str, Any]:
    change, options = request.param
    return dict(ray_job(raw_job(**change), **options)["spec"])


def with_reward_model(accelerator: str, **reward_model: Any) -> dict[str, Any]:
    tasks = {"steps": 2, "tasksPerStep": 4}
    return raw_job(
        model={"path": "/m"},
        agent={"type": "tool", "enableAgent": False},
        environment={"name": "dataset", "options": {"path": "/data.jsonl", "reward": "reward_model"}},
        algorithm={"type": "grpo", "minibatchTasks": 4},
        training=tasks,
        resources={"train": {"accelerator": "H100"}},
        rewardModel={"path": "/m", "accelerator": accelerator, **reward_model},
    )


@pytest.mark.parametrize(
    ("accelerator", "replicas", "pods"),
    [("A40", 2, {"h100": 1, "a40": 2}), ("H100", 1, {"h100": 2})],
    ids=["machines of its own", "machines of the same kind"],
)
def test_a_reward_model_has_pods_of_its_own(accelerator, replicas, pods):
    groups = ray_job(with_reward_model(accelerator, replicas=replicas))["spec"]["rayClusterSpec"]["workerGroupSpecs"]

    assert {group["groupName"]: group["replicas"] for group in groups} == pods


@pytest.mark.parametrize(
    ("reward_model", "message"),
    [
        ({"accelerator": "T4"}, "spec.rewardModel.accelerator: 'T4' is none of the team's accelerators"),
        ({"tensorParallel": 2}, "spec.rewardModel.tensorParallel: 2 is more than the 1 GPUs of a node of a40"),
        ({"replicas": 3}, "spec.rewardModel.replicas: the job needs 3 nodes of a40"),
    ],
    ids=["no such accelerator", "no such node", "too many nodes"],
)
def test_a_reward_model_that_has_no_place_is_refused(reward_model, message):
    view, settings = job_view(with_reward_model(**{"accelerator": "A40", **reward_model})), team_view(raw_team())
    assert view.job is not None
    assert not isinstance(settings, Exception)

    refused = place(view.job.spec, settings)

    assert isinstance(refused, DesiredCondition)
    assert refused.message.startswith(message)


def test_the_longest_rayjob_name_is_within_the_limit_of_kuberay():
    name = ray_job(raw_job("j" * 40), attempt=999_999)["metadata"]["name"]

    assert len(name) == 47
    # KubeRay adds five letters and a dash for the RayCluster.
    assert len(name) + 6 <= 53


def test_a_rayjob_has_either_its_own_cluster_or_a_selector(spec: dict[str, Any]):
    assert ("rayClusterSpec" in spec) != ("clusterSelector" in spec)


def test_only_rayjobs_with_a_cluster_of_their_own_can_be_suspended(spec: dict[str, Any]):
    if "suspend" in spec:
        assert spec["shutdownAfterJobFinishes"] is True
        assert "clusterSelector" not in spec


def test_a_rayjob_sets_only_one_way_to_shut_its_cluster_down(spec: dict[str, Any]):
    assert "deletionStrategy" not in spec
    assert spec.get("ttlSecondsAfterFinished", 0) == 0 or spec["shutdownAfterJobFinishes"]


def test_kuberay_neither_retries_nor_uses_a_submitter_pod(spec: dict[str, Any]):
    assert spec["backoffLimit"] == 0
    assert spec["submissionMode"] == "HTTPMode"
    assert not {"submitterPodTemplate", "submitterConfig"} & spec.keys()


def test_every_worker_group_sets_all_replica_counts(spec: dict[str, Any]):
    cluster = spec.get("rayClusterSpec", {"workerGroupSpecs": []})

    assert "enableInTreeAutoscaling" not in cluster
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] == group["maxReplicas"] == group["replicas"] > 0


def test_the_cluster_has_no_option_that_a_rayjob_or_an_old_release_refuses(spec: dict[str, Any]):
    cluster = spec.get("rayClusterSpec", {})

    assert set(cluster) <= {"rayVersion", "headGroupSpec", "workerGroupSpecs", "authOptions"}
    for group in (cluster.get("headGroupSpec", {}), *cluster.get("workerGroupSpecs", ())):
        assert "labels" not in group.get("rayStartParams", {})
        assert "resources" not in group


def test_clients_of_a_ray_cluster_always_need_a_token(spec: dict[str, Any]):
    # A shared cluster is the chart's.
    assert "rayClusterSpec" not in spec or spec["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    assert "RAY_AUTH_MODE" not in json.dumps(spec)


def test_a_queued_rayjob_names_its_priority_class():
    queued = ray_job(raw_job(queue="team-a", queuePriorityClass="research"))

    assert queued["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "research"


def test_a_queued_rayjob_leaves_suspend_to_kueue():
    queued = ray_job(raw_job(queue="team-a"))

    assert queued["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert "kueue.x-k8s.io/priority-class" not in queued["metadata"]["labels"]
    assert "suspend" not in queued["spec"]
    assert queued["spec"]["shutdownAfterJobFinishes"] is True


def test_training_and_rollout_get_pods_of_their_accelerators():
    groups = ray_job(raw_job(**SEPARATE))["spec"]["rayClusterSpec"]["workerGroupSpecs"]

    assert {group["groupName"]: group["replicas"] for group in groups} == {"h100": 1, "a40": 2}


def test_a_job_gets_only_the_pods_that_it_uses():
    groups = ray_job(raw_job(resources={"train": {"accelerator": "A40"}}))["spec"]["rayClusterSpec"]["workerGroupSpecs"]

    assert [group["groupName"] for group in groups] == ["a40"]


def test_default_values_are_left_out_of_the_runs_job():
    filled_in = parse_job(raw_job()).model_dump(mode="json", by_alias=True)
    variables = yaml.safe_load(ray_job(raw_job(**filled_in["spec"]))["spec"]["runtimeEnvYAML"])["env_vars"]

    resource = json.loads(variables["TURNMILL_JOB"])

    assert "memoryMib" not in resource["spec"]["environment"]
    assert parse_job(resource).spec == parse_job(raw_job()).spec


def test_the_run_gets_its_job_attempt_folder_port_and_device():
    variables = yaml.safe_load(ray_job(raw_job(), attempt=3)["spec"]["runtimeEnvYAML"])["env_vars"]

    assert json.loads(variables.pop("TURNMILL_JOB"))["spec"]["training"]["steps"] == 20
    assert variables == {
        "TURNMILL_ATTEMPT": "3",
        "TURNMILL_RUN_DIR": f"/runs/team-a/job-{UID[:8]}",
        "TURNMILL_METRICS_PORT": "9464",
        "TURNMILL_DEVICE": "cpu",
    }


def test_created_objects_are_owned_by_the_job():
    made = ray_job(raw_job(), attempt=2)
    (owner,) = made["metadata"]["ownerReferences"]

    assert (owner["kind"], owner["uid"], owner["controller"]) == ("AgentTrainingJob", UID, True)
    for pod in (
        made["spec"]["rayClusterSpec"]["headGroupSpec"]["template"],
        made["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"],
    ):
        assert pod["metadata"]["labels"]["turnmill.dev/job"] == "job"
        assert pod["metadata"]["labels"]["turnmill.dev/attempt"] == "2"


def test_a_teams_own_labels_and_ports_are_kept():
    head = pod_template(ports=[{"name": "gcs", "containerPort": 6379}, {"name": "turnmill", "containerPort": 9464}])
    head["metadata"] = {"labels": {"app.kubernetes.io/name": "theirs"}}

    made = ray_job(raw_job(), team=raw_team(head={"template": head}))["spec"]["rayClusterSpec"]["headGroupSpec"]

    assert made["template"]["metadata"]["labels"]["app.kubernetes.io/name"] == "theirs"
    ports = {port["name"]: port["containerPort"] for port in made["template"]["spec"]["containers"][0]["ports"]}
    assert ports == {"gcs": 6379, "turnmill": 9464, "dashboard": 8265, "client": 10001}


def test_a_teams_labels_are_on_its_runs_beside_the_operators_own():
    team = raw_team(runLabels={"volcano.sh/queue-name": "research"})

    labels = ray_job(raw_job(), team=team)["metadata"]["labels"]

    assert labels == ray_job(raw_job())["metadata"]["labels"] | {"volcano.sh/queue-name": "research"}


def test_the_hash_changes_with_the_spec_of_the_run():
    def spec_hash(made: dict[str, Any]) -> str:
        return str(made["metadata"]["annotations"]["turnmill.dev/spec-hash"])

    same = ray_job(raw_job())

    assert spec_hash(same) == spec_hash(ray_job(raw_job(), suspend=True, started=False))
    assert spec_hash(same) != spec_hash(ray_job(raw_job(training__steps=21)))
    assert spec_hash(same) != spec_hash(ray_job(raw_job(), team=raw_team(rayVersion="2.61.0")))


def test_a_clean_up_job_has_a_deadline():
    team = team_view(raw_team(cleanUp={"template": {"spec": {"containers": [{"name": "turnmill"}]}}}))
    assert not isinstance(team, Exception)
    assert team.clean_up is not None

    made = build_clean_up(job_view(raw_job()), team.clean_up)

    assert made["spec"]["activeDeadlineSeconds"] == 60
    assert made["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert made["metadata"]["ownerReferences"][0]["uid"] == UID
