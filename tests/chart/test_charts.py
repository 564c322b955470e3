"""The objects that the charts render, with their defaults and with every file of example values."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from typer.testing import CliRunner

from support.charts import (
    CHARTS,
    OPERATOR,
    TEAM,
    of_kind,
    options,
    pod_templates,
    render,
    try_helm,
    values_files,
)
from support.programs import find_program, why_no_program
from turnmill.cli.main import app
from turnmill.core.errors import SettingsError
from turnmill.jobs.resources import ray_resource
from turnmill.jobs.team import parse_team, run_dir
from turnmill.trajectory_page import serve
from turnmill_operator.pod_rules import PodRules

ROOT = CHARTS.parent
CASES = [(chart, file) for chart in (OPERATOR, TEAM) for file in (None, *values_files(chart))]
ELSEWHERE = {"store.external.url": "redis://host:6379"}

pytestmark = pytest.mark.skipif(why_no_program("helm") is not None, reason=why_no_program("helm") or "")

each_case = pytest.mark.parametrize(
    ("chart", "file"), CASES, ids=[f"{chart.name}-{file.stem if file else 'defaults'}" for chart, file in CASES]
)


def rendered(chart: Path, file: Path | None = None) -> list[dict[str, Any]]:
    return render(chart, files=[file] if file else [])


@each_case
def test_helm_lint_passes(chart, file):
    done = try_helm("lint", "--strict", str(chart), *options(files=[file] if file else []))

    assert done.returncode == 0, done.stdout


@each_case
def test_object_names_are_unique_and_valid(chart, file):
    objects = rendered(chart, file)

    keys = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
    assert len(keys) == len(set(keys))
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", name) for _, _, name in keys)


@each_case
def test_every_pod_is_restricted_has_limits_and_mounts_no_unneeded_token(chart, file):
    for place, template in [pod for found in rendered(chart, file) for pod in pod_templates(found)]:
        spec = template["spec"]
        needs_token = "operator" in place or "release-jobs" in place

        assert spec["automountServiceAccountToken"] is needs_token, place
        assert spec["securityContext"]["runAsNonRoot"], place
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, place
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), place
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"], place
            capabilities = container["securityContext"]["capabilities"]
            assert capabilities["drop"] == ["ALL"], place
            # The one that the values of a worker group may add under Pod Security's level `restricted`.
            assert set(capabilities.get("add", ())) <= {"NET_BIND_SERVICE"}, place
            assert not container["securityContext"]["allowPrivilegeEscalation"], place
            assert {"cpu", "memory", "ephemeral-storage"} <= set(container["resources"]["requests"]), place
            assert {"memory", "ephemeral-storage"} <= set(container["resources"]["limits"]), place
        for volume in spec.get("volumes", []):
            assert volume.get("emptyDir", {"sizeLimit": ""}).get("sizeLimit") is not None, place


def has_ports(container: dict[str, Any]) -> bool:
    return bool(container.get("ports"))


@each_case
def test_servers_have_probes(chart, file):
    for found in rendered(chart, file):
        if found["kind"] in ("Deployment", "StatefulSet"):
            for container in filter(has_ports, found["spec"]["template"]["spec"]["containers"]):
                assert {"readinessProbe", "livenessProbe"} <= set(container)


@pytest.mark.parametrize(
    ("chart", "values", "message"),
    [
        (TEAM, {"toolServer.replica": 2}, "additional properties 'replica' not allowed"),
        (TEAM, {"toolserver": {}}, "additional properties 'toolserver' not allowed"),
        (TEAM, {"toolServer.drainSeconds": 0}, "minimum: got 0, want 1"),
        (TEAM, {"toolServer.settings.SERPER_API_KEY": "x"}, "name the Secret in toolServer.settingsSecret"),
        (TEAM, {"store.external.url": "redis://:secret@host:6379"}, "does not match pattern"),
        # The primaries vote about the place of one that is silent.
        (TEAM, {"store.cluster.primaries": 1}, "store/cluster/primaries"),
        (TEAM, {"store.cluster.primaries": 2}, "minimum: got 2, want 3"),
        (TEAM, ELSEWHERE | {"store.password.existingSecret": "redis"}, "store.external.cidrs is empty"),
        (TEAM, ELSEWHERE | {"store.external.cidrs": ["192.0.2.10/32"]}, "store.password.existingSecret is empty"),
        (TEAM, {"view.allowedHosts": ["*.example.com"]}, "does not match pattern"),
        (TEAM, {"view.ingress.host": "https://runs.example.com"}, "does not match pattern"),
        (TEAM, {"view.from": [{}]}, "minProperties: got 0, want 1"),
        (TEAM, {"view.from": [{"namespace": "proxy"}]}, "additional properties 'namespace' not allowed"),
        (TEAM, {"view.enabled": True, "view.ingress": {"enabled": True, "host": "a.b"}}, "view.from is empty"),
        (TEAM, {"trainer.groups.h100.gpus": 8}, "additional properties 'gpus' not allowed"),
        (TEAM, {"trainer.groups.h100.device": "tpu"}, "must be one of 'cuda', 'cpu'"),
        (TEAM, {"trainer.groups.h100": None}, "trainer.defaultGroup (h100) is none of trainer.groups (a40)"),
        (OPERATOR, {"operator.replicas": -1}, "minimum: got -1, want 0"),
        (OPERATOR, {"crd.enabled": True}, "additional properties 'crd' not allowed"),
    ],
)
def test_an_invalid_value_is_refused_with_its_path(chart, values, message):
    done = try_helm("template", "team-a", str(chart), *options(values))

    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.parametrize("chart", [OPERATOR, TEAM], ids=lambda chart: chart.name)
def test_the_schema_covers_every_value_and_refuses_others(chart):
    schema = json.loads((chart / "values.schema.json").read_text())
    values = yaml.safe_load((chart / "values.yaml").read_text())

    assert unknown(values, schema, schema) == []
    assert open_objects(schema["properties"]) == ["global"]


def unknown(values: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], place: str = "") -> list[str]:
    """Return values without a schema, and schemas without a value."""
    properties = schema.get("properties", {})
    found = [f"{place}{name}" for name in set(values) ^ (set(properties) - {"global"})]
    for name, value in values.items():
        below = properties.get(name, {})
        if isinstance(value, dict) and "properties" in below:
            found += unknown(value, below, root, f"{place}{name}.")
    return found


def open_objects(properties: dict[str, Any]) -> list[str]:
    """Return schemas of objects that allow any property; maps with a schema of their entries do not count."""
    found = []
    for name, schema in properties.items():
        if schema.get("type") == "object" and "additionalProperties" not in schema:
            found.append(name)
        found += open_objects(schema.get("properties", {}))
    return found


@pytest.mark.parametrize("chart", [OPERATOR, TEAM], ids=lambda chart: chart.name)
def test_an_example_sets_every_value(chart):
    everything = yaml.safe_load((chart / "ci" / "everything-values.yaml").read_text())
    values = yaml.safe_load((chart / "values.yaml").read_text())

    assert unset(values, everything) == []


def unset(values: dict[str, Any], example: dict[str, Any], place: str = "") -> list[str]:
    found = []
    for name, value in values.items():
        if name not in example:
            found.append(f"{place}{name}")
        elif isinstance(value, dict) and value and place + name not in ("trainer.groups", "quota.hard"):
            found += unset(value, example[name] or {}, f"{place}{name}.")
    return found


@pytest.mark.parametrize("file", [None, *values_files(TEAM)], ids=lambda file: file.stem if file else "defaults")
def test_the_operator_can_parse_the_team_file_of_the_chart(file):
    objects = rendered(TEAM, file)
    (config,) = of_kind(objects, "ConfigMap", "turnmill-team")

    team = parse_team(config["data"])

    groups = {group.name: group for group in team.worker_groups}
    assert set(groups) <= {"h100", "a40", "l4"}
    for group in groups.values():
        limits = group.template["spec"]["containers"][0]["resources"]["limits"]
        assert ray_resource(group.accelerator) in group.ray_start_params["resources"]
        if group.device == "cpu":
            assert group.ray_start_params["num-gpus"] == str(group.gpus_per_node)
        else:
            assert limits["nvidia.com/gpu"] == str(group.gpus_per_node)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_shared_cluster_declares_the_resources_of_empty_worker_groups(device):
    values = {"trainer.sharedCluster.enabled": True, "trainer.groups.h100.device": device}
    (cluster,) = of_kind(render(TEAM, values), "RayCluster")
    cluster["metadata"]["namespace"] = "team-a"

    known = _derive_autoscaling_config_from_ray_cr(cluster)["available_node_types"]["h100"]

    assert known["min_workers"] == 0
    assert known["resources"]["GPU"] == 8
    assert known["resources"][ray_resource("H100")] == 1


def test_jobs_that_name_no_accelerator_go_to_the_default_group():
    objects = render(TEAM, {"trainer.defaultGroup": "a40"})
    (config,) = of_kind(objects, "ConfigMap", "turnmill-team")

    assert parse_team(config["data"]).worker_groups[0].name == "a40"


def test_gpu_groups_go_to_nodes_with_their_product():
    (config,) = of_kind(render(TEAM), "ConfigMap", "turnmill-team")

    spec = parse_team(config["data"]).worker_groups[0].template["spec"]

    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["key"] == "nvidia.com/gpu.product"
    assert "NVIDIA-H100-80GB-HBM3" in term["matchExpressions"][0]["values"]
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]


TOKEN_VARIABLE = '"name": "TURNMILL_TOOL_SERVER_TOKEN"'


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("team-a-store", "password"),
        ("team-a-store-users", "trainer"),
        ("team-a-store-users", "tool-server"),
        ("team-a-store-users", "clean-up"),
        ("team-a-tool-server", "token"),
    ],
)
def test_the_store_password_and_the_token_are_only_in_secrets(name: str, key: str):
    objects = render(TEAM)
    (secret,) = of_kind(objects, "Secret", name)
    word = secret["data"][key]

    others = json.dumps([found for found in objects if found["kind"] != "Secret"])

    assert len(word) > 40
    assert word not in others


USERS = ("trainer", "tool-server", "clean-up")


def logins(template: Any) -> set[tuple[str, str, str]]:
    """Return user, Secret and key of every login to the store in the containers of a pod."""
    found = set()
    for container in template["spec"]["containers"]:
        env = {entry["name"]: entry for entry in container.get("env", ())}
        if "TURNMILL_STORE_PASSWORD" in env:
            reference = env["TURNMILL_STORE_PASSWORD"]["valueFrom"]["secretKeyRef"]
            found.add((env.get("TURNMILL_STORE_USER", {}).get("value", ""), reference["name"], reference["key"]))
    return found


def logins_of_team(values: dict[str, Any]) -> dict[str, set[tuple[str, str, str]]]:
    objects = render(TEAM, values)
    (config,) = of_kind(objects, "ConfigMap", "turnmill-team")
    team = parse_team(config["data"])
    (tools,) = of_kind(objects, "Deployment")
    (test,) = of_kind(objects, "Pod", "team-a-test")
    ray = [team.head.template, *(group.template for group in team.worker_groups)]
    return {
        "trainer": {login for template in ray for login in logins(template)},
        "tool-server": logins(tools["spec"]["template"]) | logins(test),
        "clean-up": logins(team.clean_up.template),
    }


def test_each_kind_of_pod_logs_in_to_the_store_as_its_own_user():
    assert logins_of_team({}) == {user: {(user, "team-a-store-users", user)} for user in USERS}
    mine = logins_of_team({"store.users.existingSecret": "mine"})
    assert mine == {user: {(user, "mine", user)} for user in USERS}


def test_pods_log_in_to_an_external_store_as_its_default_user_unless_its_users_are_named():
    external = {
        "store.external.url": "redis://host:6379", "store.external.cidrs": ["192.0.2.10/32"],
        "store.password.existingSecret": "redis",
    }  # fmt: skip

    assert logins_of_team(external) == {user: {("", "redis", "password")} for user in USERS}
    named = logins_of_team(external | {"store.users.existingSecret": "mine"})
    assert named == {user: {(user, "mine", user)} for user in USERS}


def test_only_the_store_has_the_password_of_the_user_who_may_do_everything():
    objects = [found for found in render(TEAM) if found["kind"] not in ("Secret", "StatefulSet")]

    assert '"secretName": "team-a-store"' not in json.dumps(objects)
    assert '"name": "team-a-store", "key"' not in json.dumps(objects)


def test_pods_of_runs_and_the_test_have_the_token_and_tool_servers_read_it_from_a_file():
    objects = render(TEAM)
    (tools,) = of_kind(objects, "Deployment")
    container = tools["spec"]["template"]["spec"]["containers"][0]
    text = json.dumps(objects)

    assert "--token-file=/run/secrets/turnmill/token" in container["args"]
    # In its environment, programs of the same user could read it.
    assert TOKEN_VARIABLE not in json.dumps(container)
    assert TOKEN_VARIABLE in text


def test_keys_of_services_are_mounted_from_a_secret():
    (tools,) = of_kind(render(TEAM, {"toolServer.settingsSecret": "tool-settings"}), "Deployment")
    spec = tools["spec"]["template"]["spec"]

    assert "--settings-dir=/run/secrets/settings" in spec["containers"][0]["args"]
    assert {"name": "settings", "secret": {"secretName": "tool-settings"}} in spec["volumes"]
    assert {"name": "settings", "mountPath": "/run/secrets/settings", "readOnly": True} in spec["containers"][0][
        "volumeMounts"
    ]


def test_without_the_token_nothing_refers_to_it():
    objects = render(TEAM, {"toolServer.token.enabled": False})

    assert [secret["metadata"]["name"] for secret in of_kind(objects, "Secret")] == [
        "team-a-store",
        "team-a-store-users",
    ]
    assert "token-file" not in json.dumps(objects)
    assert TOKEN_VARIABLE not in json.dumps(objects)


def test_a_team_whose_passwords_a_job_makes_is_rendered_the_same_twice():
    values = {"passwords.fromJob": True}

    assert render(TEAM, values) == render(TEAM, values)
    assert not of_kind(render(TEAM, values), "Secret")


def test_the_operator_refuses_what_a_group_asks_for_beyond_the_rights_of_teams_unless_they_are_given():
    asked = {"hostNetwork": True, "capabilities": ["IPC_LOCK"], "runtimeClassName": "nvidia"}
    (config,) = of_kind(render(TEAM, {"trainer.groups.h100.pod": asked}), "ConfigMap", "turnmill-team")
    team = parse_team(config["data"])

    with pytest.raises(SettingsError) as refused:
        PodRules().check(team)
    PodRules(frozenset({"hostNamespaces", "capabilities"})).check(team)

    assert "workerGroups.h100.template.spec.hostNetwork needs the right hostNamespaces" in str(refused.value)
    assert (
        "workerGroups.h100.template.spec.containers[0].securityContext.capabilities needs the right capabilities"
        in (str(refused.value))
    )


def test_an_external_store_replaces_the_bundled_one():
    objects = rendered(TEAM, TEAM / "ci" / "external-store-values.yaml")

    assert not of_kind(objects, "StatefulSet")
    assert not of_kind(objects, "Secret", "team-a-store")
    (tools,) = of_kind(objects, "Deployment")
    env = {entry["name"]: entry for entry in tools["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env["TURNMILL_REDIS"]["value"] == "rediss://redis.example.com:6380/0"
    assert env["TURNMILL_STORE_PASSWORD"]["valueFrom"]["secretKeyRef"] == {"name": "redis", "key": "password"}
    assert "TURNMILL_STORE_USER" not in env
    (policy,) = of_kind(objects, "NetworkPolicy", "team-a-tool-servers")
    assert policy["spec"]["egress"] == [
        {"to": [{"ipBlock": {"cidr": "192.0.2.10/32"}}], "ports": [{"port": 6380, "protocol": "TCP"}]}
    ]


def test_an_external_store_may_be_a_cluster():
    values = {
        "store.external.url": "rediss+cluster://redis.example.com:7000",
        "store.external.cidrs": ["192.0.2.0/28"],
        "store.password.existingSecret": "redis",
    }

    objects = render(TEAM, values)

    (tools,) = of_kind(objects, "Deployment")
    env = {entry["name"]: entry for entry in tools["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env["TURNMILL_REDIS"]["value"] == "rediss+cluster://redis.example.com:7000"
    (policy,) = of_kind(objects, "NetworkPolicy", "team-a-tool-servers")
    assert policy["spec"]["egress"][0]["ports"] == [{"port": 7000, "protocol": "TCP"}]


def test_a_cluster_is_named_to_runs_and_tool_servers_and_its_nodes_reach_one_another():
    objects = render(TEAM, {"store.cluster.primaries": 3})

    (tools,) = of_kind(objects, "Deployment")
    env = {entry["name"]: entry for entry in tools["spec"]["template"]["spec"]["containers"][0]["env"]}
    url = env["TURNMILL_REDIS"]["value"]
    assert url.startswith("redis+cluster://")
    assert url in yaml.safe_dump(of_kind(objects, "ConfigMap", "turnmill-team"))
    (policy,) = of_kind(objects, "NetworkPolicy", "team-a-store")
    store = {"podSelector": policy["spec"]["podSelector"]}
    ports = [{"port": 6379, "protocol": "TCP"}, {"port": 16379, "protocol": "TCP"}]
    assert {"from": [store], "ports": ports} in policy["spec"]["ingress"]
    assert policy["spec"]["egress"] == [{"to": [store], "ports": ports}]


def test_the_autoscaler_uses_calls_in_flight_or_else_cpu():
    (scaler,) = of_kind(render(TEAM), "HorizontalPodAutoscaler")
    assert [metric["type"] for metric in scaler["spec"]["metrics"]] == ["Pods", "Resource"]

    (fallback,) = of_kind(render(TEAM, {"toolServer.autoscaling.callsInFlight": 0}), "HorizontalPodAutoscaler")
    assert [metric["type"] for metric in fallback["spec"]["metrics"]] == ["Resource"]


@pytest.mark.parametrize(
    ("values", "there"),
    [
        ({"toolServer.autoscaling.enabled": False, "toolServer.replicas": 0}, True),
        ({"toolServer.autoscaling.enabled": False, "toolServer.replicas": None}, False),
        ({}, False),
    ],
)
def test_the_replica_count_is_left_to_the_autoscaler(values, there):
    (tools,) = of_kind(render(TEAM, values), "Deployment")

    assert ("replicas" in tools["spec"]) is there


def test_the_termination_grace_period_exceeds_the_drain_time():
    (tools,) = of_kind(render(TEAM, {"toolServer.drainSeconds": 600, "toolServer.lameDuckSeconds": 7}), "Deployment")
    spec = tools["spec"]["template"]["spec"]

    assert "--grace-seconds=600" in spec["containers"][0]["args"]
    assert spec["containers"][0]["lifecycle"]["preStop"] == {"sleep": {"seconds": 7}}
    assert spec["terminationGracePeriodSeconds"] > 607


def test_monitors_are_rendered_only_if_their_api_is_installed():
    kinds = {"PodMonitor", "PrometheusRule"}
    for chart in (OPERATOR, TEAM):
        without = {found["kind"] for found in render(chart, apis=[])}
        with_api = {found["kind"] for found in render(chart)}

        assert not kinds & without
        assert "PodMonitor" in with_api


def test_every_scraped_port_of_a_head_is_declared():
    objects = render(TEAM, {"trainer.sharedCluster.enabled": True})
    (monitor,) = [found for found in of_kind(objects, "PodMonitor") if found["metadata"]["name"].endswith("-ray")]
    (cluster,) = of_kind(objects, "RayCluster")

    head = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    asked = {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]}
    assert asked <= {port["name"] for port in head["ports"]}


def test_the_operator_reads_no_secrets():
    for file in (None, *values_files(OPERATOR)):
        for role in [found for found in rendered(OPERATOR, file) if found["kind"] in ("Role", "ClusterRole")]:
            for rule in role["rules"]:
                assert "secrets" not in rule["resources"]
                assert "*" not in rule["resources"] + rule["verbs"] + rule["apiGroups"]


def test_an_operator_for_namespaces_has_no_cluster_scoped_objects():
    objects = rendered(OPERATOR, OPERATOR / "ci" / "one-namespace-values.yaml")

    assert {found["kind"] for found in objects}.isdisjoint(
        {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "PriorityClass"}
    )
    roles = of_kind(objects, "Role", "team-a-operator")
    assert sorted(role["metadata"]["namespace"] for role in roles) == ["team-a", "team-b"]


def test_the_custom_resource_definition_is_kept_on_uninstall():
    (kept,) = of_kind(render(OPERATOR), "CustomResourceDefinition")
    assert kept["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"

    (dropped,) = of_kind(render(OPERATOR, {"crds.keep": False}), "CustomResourceDefinition")
    assert "annotations" not in dropped["metadata"]
    assert kept["spec"] == dropped["spec"]


def test_the_priorities_are_trainer_then_rollout_then_tools():
    values = {found["metadata"]["name"]: found["value"] for found in of_kind(render(OPERATOR), "PriorityClass")}

    assert values["turnmill-trainer"] > values["turnmill-rollout"] > values["turnmill-tools"]


def test_traffic_is_denied_unless_a_network_policy_allows_it():
    policies = {found["metadata"]["name"]: found for found in of_kind(render(TEAM), "NetworkPolicy")}

    assert policies["team-a-default-deny"]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for name, policy in policies.items():
        peers = peers_of(policy)
        assert all("namespaceSelector" in peer or "podSelector" in peer for peer in peers), name
        assert all(peer.get("namespaceSelector") != {} for peer in peers), name


def test_the_operator_and_its_test_reach_each_other_under_default_deny():
    objects = rendered(OPERATOR, OPERATOR / "ci" / "one-namespace-values.yaml")
    operator, test = ({"matchLabels": labels_of(objects, component)} for component in ("operator", "test"))
    ports = [{"port": 8080, "protocol": "TCP"}]

    (way_in,) = of_kind(objects, "NetworkPolicy", "team-a-operator")
    (way_out,) = of_kind(objects, "NetworkPolicy", "team-a-test")

    assert way_in["spec"]["podSelector"] == operator
    assert {"from": [{"podSelector": test}], "ports": ports} in way_in["spec"]["ingress"]
    assert way_out["spec"]["podSelector"] == test
    assert {"to": [{"podSelector": operator}], "ports": ports} in way_out["spec"]["egress"]


def test_a_team_admits_the_operator_under_any_release_name():
    (policy,) = of_kind(render(TEAM), "NetworkPolicy", "team-a-ray")
    (operator,) = of_kind(rendered(OPERATOR, OPERATOR / "ci" / "everything-values.yaml"), "Deployment")

    (asked,) = [peer["podSelector"]["matchLabels"] for peer in peers_of(policy) if "turnmill-system" in str(peer)]

    assert asked.items() <= operator["spec"]["template"]["metadata"]["labels"].items()


def peers_of(policy: dict[str, Any]) -> list[dict[str, Any]]:
    return [peer for rule in policy["spec"].get("ingress", []) for peer in rule["from"]]


def labels_of(objects: list[dict[str, Any]], component: str) -> dict[str, str]:
    """Return the labels that select a component's pods."""
    templates = [template for found in objects for _, template in pod_templates(found)]
    labels = [template["metadata"]["labels"] for template in templates]
    (found,) = [each for each in labels if each["app.kubernetes.io/component"] == component]
    return {name: found[name] for name in (f"app.kubernetes.io/{part}" for part in ("name", "instance", "component"))}


PROXY = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "proxy"}}}
VIEW = {"view.enabled": True, "view.from": [PROXY]}


def test_the_page_of_runs_connects_to_nothing_and_only_named_pods_connect_to_it():
    objects = render(TEAM, VIEW)
    labels = labels_of(objects, "view")
    policies = [found["spec"] for found in of_kind(objects, "NetworkPolicy") if selects(found["spec"], labels)]
    others = [found["spec"] for found in of_kind(objects, "NetworkPolicy") if selects(found["spec"], {})]

    assert [rule for policy in policies for rule in policy.get("egress", ())] == []
    assert [rule for policy in policies for rule in policy.get("ingress", ())] == [
        {"from": [PROXY], "ports": [{"port": 8600, "protocol": "TCP"}]}
    ]
    assert {"policyTypes": ["Ingress", "Egress"], "podSelector": {}} in policies
    # All other pods resolve names.
    assert [rule["ports"][0]["port"] for policy in others for rule in policy.get("egress", ())] == [53]


def selects(policy: dict[str, Any], labels: dict[str, str]) -> bool:
    """Return whether a NetworkPolicy applies to pods with these labels."""
    selector = policy["podSelector"]
    named = selector.get("matchLabels", {}).items() <= labels.items()
    return named and all(
        (labels.get(each["key"]) in each["values"]) is (each["operator"] == "In")
        for each in selector.get("matchExpressions", ())
    )


def test_the_page_of_runs_can_change_nothing():
    objects = render(TEAM, VIEW)
    (page,) = of_kind(objects, "Deployment", "team-a-view")
    spec = page["spec"]["template"]["spec"]
    (account,) = of_kind(objects, "ServiceAccount", spec["serviceAccountName"])

    claims = [volume["persistentVolumeClaim"] for volume in spec["volumes"] if "persistentVolumeClaim" in volume]
    assert claims == [{"claimName": "team-a-runs", "readOnly": True}]
    assert {mount["mountPath"]: mount.get("readOnly", False) for mount in spec["containers"][0]["volumeMounts"]} == {
        "/runs": True, "/tmp": False,
    }  # fmt: skip
    assert account["automountServiceAccountToken"] is False
    assert not [found for found in objects if found["kind"] in ("Role", "RoleBinding")]
    assert "secret" not in json.dumps(page).lower()


def test_turnmill_accepts_what_the_chart_tells_the_page_of_runs(monkeypatch):
    (page,) = of_kind(rendered(TEAM, TEAM / "ci" / "everything-values.yaml"), "Deployment", "agents-view")
    container = page["spec"]["template"]["spec"]["containers"][0]
    given: dict[str, Any] = {}
    monkeypatch.setattr(serve, "serve", lambda source, **options: given.update(options, source=source))

    done = CliRunner().invoke(app, [*container["command"][1:], *container["args"]])

    assert done.exit_code == 0, done.output
    assert (given["source"], given["runs"], given["host"], given["port"]) == ("/runs/team-a", True, "0.0.0.0", 8600)
    assert list(serve.checked_host_names(given["allowed_hosts"])) == [
        "agents-view", "agents-view.team-a.svc", "runs.internal.example.com", "runs.example.com",
    ]  # fmt: skip
    assert run_dir("team-a", "job", "0123456789") == f"{given['source']}/job-01234567"


@pytest.mark.parametrize(
    ("source", "copies"),
    [
        ("manifests/crds", "charts/turnmill/files/crds"),
        ("manifests/dashboards", "charts/turnmill/files/dashboards"),
    ],
)
def test_the_charts_contain_the_generated_manifests(source, copies):
    assert texts(ROOT / copies) == texts(ROOT / source)


def test_the_alerts_of_the_charts_are_those_of_the_manifests():
    carried = texts(OPERATOR / "files" / "alerts") | texts(TEAM / "files" / "alerts")

    assert carried == texts(ROOT / "manifests" / "alerts")


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*") if path.is_file()}


@pytest.mark.skipif(why_no_program("helm-docs") is not None, reason=why_no_program("helm-docs") or "")
@pytest.mark.parametrize("chart", [OPERATOR, TEAM], ids=lambda chart: chart.name)
def test_the_chart_readmes_are_up_to_date(chart):
    program = find_program("helm-docs")
    done = subprocess.run(
        [program, "--chart-search-root", chart, "--dry-run", "--log-level=error"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert (chart / "README.md").read_text().strip() == done.stdout.strip(), "run `make charts`"


@pytest.mark.skipif(why_no_program("helm-unittest") is not None, reason=why_no_program("helm-unittest") or "")
@pytest.mark.parametrize("chart", [OPERATOR, TEAM], ids=lambda chart: chart.name)
def test_helm_unittest_passes(chart):
    program = find_program("helm-unittest")
    done = subprocess.run(
        [program, "--strict", chart], capture_output=True, text=True, check=False, timeout=120, env={"CI": "true"}
    )

    assert done.returncode == 0, done.stdout + done.stderr
