"""Every manifest and both charts with every example of values: valid, accepted by the API server, restricted."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.charts import CHARTS, OPERATOR, PROMETHEUS_API, TEAM, pod_templates, render, values_files
from support.kubeconform import find_invalid, write_schemas
from support.kubernetes import Namespace, temporary_namespace
from support.programs import why_no_program
from support.team_jobs import install_definition

MANIFESTS = CHARTS.parent / "manifests"
MODES = ("enforce", "warn")
CASES = [(chart, file) for chart in (OPERATOR, TEAM) for file in (None, *values_files(chart))]
FILES = sorted(MANIFESTS.rglob("*.yaml"))

MISSING = why_no_program("helm") or why_no_program("kubeconform")

pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")
each_case = pytest.mark.parametrize(
    ("chart", "file"), CASES, ids=[f"{chart.name}-{file.stem if file else 'defaults'}" for chart, file in CASES]
)
each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(MANIFESTS)))


@pytest.fixture(scope="module")
def namespace(prefix: str) -> Iterator[Namespace]:
    """A namespace that refuses unrestricted pods and warns of objects that would create them."""
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in MODES}
    with temporary_namespace(prefix, labels=labels) as fresh:
        install_definition(fresh)
        yield fresh


@pytest.fixture(scope="module")
def schemas(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("schemas")
    write_schemas(namespace, folder)
    return folder


def objects_of(chart: Path, file: Path | None, namespace: Namespace) -> list[dict[str, Any]]:
    """Render the chart for the namespace and for the APIs of the cluster."""
    served = namespace.kubectl("api-versions").split()
    # kubectl refuses objects of a second namespace, and the operator's namespaces must exist.
    values: dict[str, Any] = {"monitoring.kubeStateMetrics.namespace": namespace.name} if chart == OPERATOR else {}
    if file and file.stem.startswith("one-namespace"):
        values["operator.namespaces"] = [namespace.name]
    apis = [api for api in (PROMETHEUS_API,) if api in served]
    return render(chart, values, [file] if file else [], namespace=namespace.name, apis=apis)


def as_list(objects: list[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


def assert_accepted(namespace: Namespace, text: str) -> None:
    """Apply the objects in a dry run, with every check of the API server, also that of Pod Security."""
    done = namespace.try_kubectl(
        *("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "--filename=-"),
        *("--field-manager=test",),
        stdin=text,
    )
    assert done.returncode == 0, done.stderr
    assert "would violate PodSecurity" not in done.stderr, done.stderr


def pod_of(number: int, made: dict[str, Any], template: dict[str, Any]) -> dict[str, Any]:
    """Return a pod as a controller would create it, without what it names and the cluster may not have."""
    missing = ("priorityClassName", "runtimeClassName", "serviceAccountName")
    spec = {key: value for key, value in template["spec"].items() if key not in missing}
    claims = made.get("spec", {}).get("volumeClaimTemplates", [])
    volumes = [*spec.get("volumes", []), *({"name": claim["metadata"]["name"], "emptyDir": {}} for claim in claims)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{number}"},
        "spec": {"restartPolicy": "Always", **spec, "volumes": volumes},
    }


@each_case
def test_the_api_server_accepts_every_object_of_a_chart(chart, file, namespace):
    assert_accepted(
        namespace, as_list([made for made in objects_of(chart, file, namespace) if made["kind"] != "Namespace"])
    )


@each_case
def test_pod_security_admits_every_pod_of_a_chart(chart, file, namespace):
    templates = [(made, template) for made in objects_of(chart, file, namespace) for _, template in pod_templates(made)]

    assert templates
    assert_accepted(namespace, as_list([pod_of(number, *found) for number, found in enumerate(templates)]))


@each_case
def test_kubeconform_finds_every_object_of_a_chart_valid(chart, file, namespace, schemas):
    assert find_invalid(objects_of(chart, file, namespace), schemas) == []


@each_file
def test_the_api_server_accepts_every_manifest(file, namespace):
    assert_accepted(namespace, file.read_text())


@each_file
def test_kubeconform_finds_every_manifest_valid(file, schemas):
    assert find_invalid(file.read_text(), schemas) == []


def test_kubeconform_reports_an_invalid_object(schemas):
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [], "contianers": []}}

    (found,) = find_invalid([pod], schemas)

    assert "contianers" in found


def test_pod_security_refuses_a_privileged_pod(namespace):
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "a", "image": "a"}]},
    }

    with pytest.raises(AssertionError, match="violates PodSecurity"):
        assert_accepted(namespace, as_list([pod]))
