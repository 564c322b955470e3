"""The alerts on the Prometheus of a cluster, installed as they are in the repository."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.kubernetes import Namespace, wait_for

ALERTS = Path(__file__).parents[2] / "manifests" / "alerts"
PROMETHEUS = "/api/v1/namespaces/monitoring/services/prometheus:9090/proxy"
LOAD_SECONDS = 180


def loaded(namespace: Namespace) -> dict[str, dict[str, Any]]:
    """Return the alerts that Prometheus has loaded from this namespace, by name."""
    answer = json.loads(namespace.kubectl("get", "--raw", f"{PROMETHEUS}/api/v1/rules?type=alert"))
    groups = [group for group in answer["data"]["groups"] if f"/{namespace.name}-" in group["file"]]
    return {rule["name"]: rule for group in groups for rule in group["rules"]}


def test_prometheus_evaluates_every_alert(namespace: Namespace):
    if namespace.try_kubectl("get", "--raw", f"{PROMETHEUS}/-/ready").returncode:
        pytest.skip("needs Prometheus as the service prometheus in the namespace monitoring, and its operator")
    rules = [yaml.safe_load(path.read_text()) for path in sorted(ALERTS.glob("*.yaml"))]
    names = {rule["alert"] for found in rules for group in found["spec"]["groups"] for rule in group["rules"]}

    namespace.apply(*rules)

    def evaluated() -> dict[str, dict[str, Any]] | None:
        alerts = loaded(namespace)
        done = alerts.keys() == names and all(alert["health"] != "unknown" for alert in alerts.values())
        return alerts if done else None

    alerts = wait_for("evaluation of every alert", evaluated, seconds=LOAD_SECONDS)
    assert {name: alert["lastError"] for name, alert in alerts.items() if alert["health"] != "ok"} == {}
