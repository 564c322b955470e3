from typing import Any

import pytest

from support.charts import CHARTS, TEAM, render
from support.ray_jobs import pod_template, raw_team
from turnmill.core.errors import SettingsError
from turnmill.jobs.team import TeamSettings, parse_team
from turnmill_operator.pod_rules import RIGHTS, PodRules, parse_rules
from turnmill_operator.views import team_view


def team(**spec: Any) -> TeamSettings:
    template = pod_template()
    template["spec"] |= spec
    return parse_team(raw_team(head={"template": template})["data"])


def container(**fields: Any) -> dict[str, Any]:
    return {"containers": [pod_template()["spec"]["containers"][0] | fields]}


def init(**fields: Any) -> dict[str, Any]:
    return {"initContainers": [{"name": "init", "image": "i", **fields}]}


def context(**fields: Any) -> dict[str, Any]:
    return {"securityContext": fields}


TOKEN = {"name": "t", "projected": {"sources": [{"configMap": {"name": "c"}}, {"serviceAccountToken": {"path": "t"}}]}}
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "hostPath": ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "hostPath", "spec.volumes[0].hostPath"),
    "hostNetwork": ({"hostNetwork": True}, "hostNamespaces", "spec.hostNetwork"),
    "hostPID": ({"hostPID": True}, "hostNamespaces", "spec.hostPID"),
    "hostIPC": ({"hostIPC": True}, "hostNamespaces", "spec.hostIPC"),
    "privileged": (container(**context(privileged=True)), "privileged", "spec.containers[0].securityContext"),
    "privileged init": (init(**context(privileged=True)), "privileged", "spec.initContainers[0]"),
    "host process": (context(windowsOptions={"hostProcess": True}), "privileged", "spec.securityContext.windows"),
    "capability": (container(**context(capabilities={"add": ["CHOWN", "SYS_ADMIN"]})), "capabilities", "capabilities"),
    "all capabilities": (init(**context(capabilities={"add": ["ALL"]})), "capabilities", "capabilities"),
    "host port": (container(ports=[{"containerPort": 1}, {"containerPort": 2, "hostPort": 2}]), "hostPorts", "ports"),
    "proc": (container(**context(procMount="Unmasked")), "unconfined", "procMount"),
    "sysctl": (context(sysctls=[{"name": "kernel.msgmax", "value": "1"}]), "unconfined", "sysctls"),
    "seccomp": (context(seccompProfile={"type": "Unconfined"}), "unconfined", "seccompProfile"),
    "apparmor": (container(**context(appArmorProfile={"type": "Unconfined"})), "unconfined", "appArmor"),
    "selinux": (context(seLinuxOptions={"type": "spc_t"}), "unconfined", "seLinuxOptions"),
    "node": ({"nodeName": "control-plane"}, "nodeName", "spec.nodeName"),
    "token": ({"automountServiceAccountToken": True}, "serviceAccountToken", "spec.automountServiceAccountToken"),
    "projected token": ({"volumes": [TOKEN]}, "serviceAccountToken", "spec.volumes[0].projected"),
}


@pytest.mark.parametrize(("spec", "right", "field"), REFUSED.values(), ids=REFUSED)
def test_a_template_that_asks_for_more_than_baseline_is_refused_unless_it_is_allowed(spec, right, field):
    with pytest.raises(SettingsError, match=rf"head\.template\.spec\..* needs the right {right}") as caught:
        PodRules().check(team(**spec))

    assert field in str(caught.value)
    PodRules(frozenset({right})).check(team(**spec))
    with pytest.raises(SettingsError, match="needs the right"):
        PodRules(frozenset(RIGHTS) - {right}).check(team(**spec))


@pytest.mark.parametrize("field", ["serviceAccountName", "serviceAccount"])
@pytest.mark.parametrize(("name", "allowed"), [("operator", False), ("team-trainer", True), ("default", True)])
def test_the_service_account_is_one_of_those_for_runs(field, name, allowed):
    settings = team(**{field: name})

    if allowed:
        PodRules().check(settings)
    else:
        with pytest.raises(SettingsError, match=rf"head\.template\.spec\.{field} is 'operator'"):
            PodRules().check(settings)
        PodRules(service_accounts=("oper*",)).check(settings)


@pytest.mark.parametrize("place", ["workerGroups.h100", "cleanUp"])
def test_every_template_is_checked(place):
    template = pod_template()
    template["spec"]["hostPID"] = True
    group = {"name": "h100", "accelerator": "H100", "maxReplicas": 1, "gpusPerNode": 1, "template": template}
    changes = {"cleanUp": {"template": template}} if place == "cleanUp" else {"workerGroups": [group]}

    found = team_view(raw_team(**changes))

    assert isinstance(found, SettingsError)
    assert f"{place}.template.spec.hostPID" in str(found)


@pytest.mark.parametrize(
    "spec", [{"volumes": "none"}, {"volumes": [None]}, {"securityContext": []}, {"initContainers": {"name": 3}}]
)
def test_a_template_that_the_api_server_would_refuse_is_left_to_it(spec):
    PodRules().check(team(**spec))


@pytest.mark.parametrize("file", sorted((TEAM / "ci").glob("*-values.yaml")), ids=lambda file: file.stem)
def test_the_templates_of_the_chart_ask_for_nothing_that_is_refused(file):
    (found,) = [each for each in render(TEAM, files=[file]) if each["metadata"]["name"] == "turnmill-team"]

    checked = team_view(found, PodRules(service_accounts=("*-trainer", "trainers")))
    assert isinstance(checked, TeamSettings), checked


def test_an_unknown_right_is_refused():
    with pytest.raises(SettingsError, match="'root' is none of capabilities, "):
        parse_rules(["root"], [])


def test_the_values_of_the_chart_name_every_right():
    text = (CHARTS / "turnmill" / "values.yaml").read_text()

    assert [right for right in RIGHTS if f"`{right}`" not in text] == []
