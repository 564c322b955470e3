import re
from pathlib import Path
from typing import Any

import pytest

from turnmill.jobs.crd import crd_yaml, custom_resource_definition
from turnmill.jobs.reference import reference
from turnmill.jobs.rules import RULES

ROOT = Path(__file__).parents[2]
VERSION = custom_resource_definition()["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]


@pytest.mark.parametrize(
    ("file", "text"),
    [("manifests/crds/agenttrainingjobs.turnmill.dev.yaml", crd_yaml()), ("docs/jobs.md", reference())],
)
def test_the_committed_files_match_the_models(file: str, text: str):
    assert (ROOT / file).read_text() == text, "run `make crds`"


def nodes(schema: dict[str, Any], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Return every schema within a schema, by its path."""
    below = [(f"{path}.{name}", child) for name, child in schema.get("properties", {}).items()]
    if "items" in schema:
        below.append((f"{path}[]", schema["items"]))
    return [(path, schema), *(node for name, child in below for node in nodes(child, name))]


@pytest.mark.parametrize(("path", "node"), nodes(SCHEMA), ids=lambda value: value if isinstance(value, str) else "")
def test_every_part_of_the_schema_is_structural_and_bounded(path: str, node: dict[str, Any]):
    assert "type" in node
    assert not {"$ref", "anyOf", "oneOf", "allOf", "const", "title", "$defs"} & node.keys()
    # Rules read these values, so the API server requires a bound on their size.
    if path.startswith(".spec"):
        if node["type"] == "string" and "enum" not in node:
            assert "maxLength" in node
        if node["type"] == "array":
            assert "maxItems" in node
        if node["type"] == "object" and "properties" not in node:
            assert "maxProperties" in node
        if node["type"] in ("integer", "number"):
            assert {"minimum", "maximum"} <= node.keys()


def test_every_field_of_the_spec_is_described():
    assert [
        path
        for path, node in nodes(SCHEMA)
        if path.startswith(".spec.") and "description" not in node and not path.endswith("[]")
    ] == []


def test_every_row_of_the_reference_is_one_line():
    tables = [line for line in reference().splitlines() if line.startswith("|")]

    assert [line for line in tables if not line.endswith("|")] == []


def test_a_rule_belongs_to_an_existing_field():
    fields = {path for path, _ in nodes(SCHEMA)}

    assert [rule.path for rule in RULES if f".spec.{rule.path}" not in fields] == []


def test_free_form_maps_preserve_unknown_fields():
    spec = SCHEMA["properties"]["spec"]["properties"]

    assert spec["verl"]["x-kubernetes-preserve-unknown-fields"]
    assert spec["environment"]["properties"]["options"]["x-kubernetes-preserve-unknown-fields"]


def test_defaults_of_sections_are_set_field_by_field():
    spec = SCHEMA["properties"]["spec"]["properties"]

    assert spec["agent"]["default"] == {}
    assert spec["training"]["properties"]["checkpointEvery"]["default"] == 10
    assert "default" not in spec["model"]["properties"]["warmStart"]


def test_sections_of_several_types_share_one_schema():
    agent = SCHEMA["properties"]["spec"]["properties"]["agent"]
    fields = agent["properties"]

    allowed = re.compile(fields["type"]["pattern"])
    assert all(map(allowed.search, ["verlog", "tool", "multi_turn", "grl", "my_package.my_kind:MyKind"]))
    assert not any(map(allowed.search, ["tol", "verlog2", "my_package", ":MyKind", "my package:MyKind"]))
    assert fields["type"]["default"] == "verlog"
    assert {"memory", "stopTokens"} <= fields.keys()
    # Fields of only one type, or with defaults that differ by type, get their defaults from the models only.
    assert [name for name in ("memory", "stopTokens", "maxTurns") if "default" in fields[name]] == []
    assert fields["maxTurns"]["minimum"] == 0
    rules = [rule["rule"] for rule in agent["x-kubernetes-validations"]]
    of_verlog, of_tool = (next(r for r in rules if f"has(self.{name})" in r) for name in ("memory", "minTurns"))
    assert "has(self.maxTurns)" not in of_verlog
    assert "has(self.stopTokens)" in of_tool
    assert "self.type != 'verlog' || !has(self.maxTurns) || self.maxTurns >= 1" in rules


@pytest.mark.parametrize(
    ("priority", "names"),
    [
        (0, ["State", "Step", "Reward", "Rollouts/s", "Age"]),
        (1, ["Attempt", "Failed share", "Cluster", "Checkpoint"]),
    ],
)
def test_kubectl_shows_more_columns_with_wide_output(priority: int, names: list[str]):
    columns = VERSION["additionalPrinterColumns"]

    assert [column["name"] for column in columns if column["priority"] == priority] == names


def test_no_field_name_is_a_yaml_boolean():
    # kubectl reads YAML 1.1, where these words are booleans, as keys too.
    booleans = {"y", "n", "yes", "no", "on", "off", "true", "false"}

    assert [path for path, _ in nodes(SCHEMA) if path.rpartition(".")[2].lower() in booleans] == []
