"""kubeconform with the schemas of the cluster, including custom resources."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.kubernetes import Namespace
from support.programs import find_program

FILE = "{{ .ResourceKind }}-{{ .Group }}-{{ .ResourceAPIVersion }}.json"
KINDS = "x-kubernetes-group-version-kind"


def write_schemas(cluster: Namespace, folder: Path) -> None:
    """Write one file for every kind in the API server's schemas."""
    index = json.loads(cluster.kubectl("get", "--raw", "/openapi/v3"))["paths"]
    for path, place in index.items():
        if path.startswith(("api/", "apis/")) and path.count("/") in (1, 2):
            # Aggregated APIs, such as that of metrics, may be unavailable.
            got = cluster.try_kubectl("get", "--raw", place["serverRelativeURL"])
            if got.returncode == 0:
                _write(json.loads(got.stdout).get("components", {}).get("schemas", {}), folder)


def _write(schemas: Mapping[str, Any], folder: Path) -> None:
    closed = {name: _closed(schema) for name, schema in schemas.items()}
    for name, schema in schemas.items():
        for kind in schema.get(KINDS, []):
            # The core group has no name; kubeconform uses its version in place of the name.
            file = f"{kind['kind'].lower()}-{kind['group'] or kind['version']}-{kind['version']}.json"
            root = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": closed}}
            (folder / file).write_text(json.dumps(root))


def _closed(schema: Any) -> Any:
    """Return the schema without any properties beyond the named ones."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: _closed(item) for name, item in schema.items()}
    named = isinstance(inner.get("properties"), dict) and inner.get("type") == "object"
    if named and not inner.get("x-kubernetes-preserve-unknown-fields"):
        inner.setdefault("additionalProperties", False)
    return inner


def find_invalid(manifests: Sequence[Mapping[str, Any]] | str, schemas: Path) -> list[str]:
    """Return kubeconform's messages on invalid objects; `manifests` are objects or YAML."""
    program = find_program("kubeconform")
    assert program is not None, "kubeconform is missing"
    text = manifests if isinstance(manifests, str) else "\n---\n".join(map(json.dumps, manifests))
    command = [str(program), "-strict", "-output=json", f"-schema-location={schemas}/{FILE}"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
    report = json.loads(done.stdout)
    return [f"{found['kind']} {found['name']}: {found['status']} {found['msg']}" for found in report["resources"]]
