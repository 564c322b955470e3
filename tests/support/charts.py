"""The charts, rendered and installed by helm."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from support.programs import find_program

CHARTS = Path(__file__).parents[2] / "charts"
TEAM, OPERATOR = CHARTS / "turnmill-team", CHARTS / "turnmill"
PROMETHEUS_API = "monitoring.coreos.com/v1"

HELM_SECONDS = 180.0


class HelmError(AssertionError):
    """A helm command that a test needs has failed."""


def values_files(chart: Path) -> list[Path]:
    """Return every file of example values of a chart."""
    return sorted((chart / "ci").glob("*-values.yaml"))


def try_helm(*arguments: str, timeout: float = HELM_SECONDS) -> subprocess.CompletedProcess[str]:
    """Run helm, which may fail."""
    program = find_program("helm")
    assert program is not None, "helm is missing"
    # Rendering must not contact a cluster that KUBECONFIG happens to name.
    environment = os.environ if arguments[0] not in ("template", "lint") else os.environ | {"KUBECONFIG": os.devnull}
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=timeout, check=False, env=environment
    )


def helm(*arguments: str, timeout: float = HELM_SECONDS) -> str:
    """Run helm and return what it prints; raises HelmError where it fails."""
    done = try_helm(*arguments, timeout=timeout)
    if done.returncode:
        raise HelmError(f"helm {' '.join(arguments)}: {done.stderr.strip()}\n{done.stdout.strip()}")
    return done.stdout


def options(values: dict[str, Any] | None = None, files: Sequence[Path] = ()) -> list[str]:
    """Return the options of helm's command line for these values."""
    chosen = [f"--values={file}" for file in files]
    return chosen + [f"--set-json={name}={json.dumps(value)}" for name, value in (values or {}).items()]


def render(
    chart: Path,
    values: dict[str, Any] | None = None,
    files: Sequence[Path] = (),
    *,
    release: str = "team-a",
    namespace: str = "team-a",
    apis: Sequence[str] = (PROMETHEUS_API,),
) -> list[dict[str, Any]]:
    """Return the objects of a rendered chart; `values` are by dotted name."""
    known = [f"--api-versions={api}" for api in apis]
    text = helm("template", release, str(chart), f"--namespace={namespace}", *known, *options(values, files))
    return [document for document in yaml.safe_load_all(text) if document]


def of_kind(objects: Sequence[dict[str, Any]], kind: str, name: str | None = None) -> list[dict[str, Any]]:
    """Return the objects of a kind, or the one of a name."""
    return [found for found in objects if found["kind"] == kind and (name is None or found["metadata"]["name"] == name)]


def pod_templates(found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return every pod template of an object, with its place in the object."""
    name = f"{found['kind']} {found['metadata']['name']}"
    spec = found.get("spec") or {}
    match found["kind"]:
        case "Pod":
            return [(name, found)]
        case "Deployment" | "StatefulSet" | "Job":
            return [(name, spec["template"])]
        case "RayCluster":
            workers = [(f"{name} {group['groupName']}", group["template"]) for group in spec["workerGroupSpecs"]]
            return [(f"{name} head", spec["headGroupSpec"]["template"]), *workers]
        case "ConfigMap" if "team.yaml" in (found.get("data") or {}):
            team = yaml.safe_load(found["data"]["team.yaml"])
            named = {group["name"]: group for group in team["workerGroups"]} | {
                "head": team["head"],
                "cleanUp": team["cleanUp"],
            }
            return [(f"{name} {place}", group["template"]) for place, group in named.items()]
    return []
