"""The CustomResourceDefinition, made from the models: structural schema, defaults, rules, columns."""

from typing import Any

import yaml

from turnmill.jobs.job import API_VERSION, KIND, AgentTrainingJob, JobSpec
from turnmill.jobs.rules import RULES, Rule
from turnmill.jobs.settings import Settings
from turnmill.jobs.status import JobStatus

PLURAL = "agenttrainingjobs"
GROUP, VERSION = API_VERSION.split("/")
MAX_ENTRY_LENGTH = 1024

Schema = dict[str, Any]

COLUMNS = (
    ("State", "string", ".status.state"),
    ("Step", "integer", ".status.progress.step"),
    ("Reward", "number", ".status.progress.rewardMean"),
    ("Age", "date", ".metadata.creationTimestamp"),
)

# What the schema of a single value means the same by, here and there.
KEPT = (
    *("description", "enum", "format", "pattern"),
    *("maximum", "minimum", "maxLength", "minLength", "maxItems", "minItems"),
)

NAME_RULE = {
    "rule": "self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "message": "metadata.name must be at most 40 lower-case letters, digits and dashes, with a letter first",
}


def custom_resource_definition() -> dict[str, Any]:
    """The manifest that teaches a cluster what an AgentTrainingJob is."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["atj"],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path} for name, kind, path in COLUMNS
                    ],
                    "schema": {"openAPIV3Schema": _root()},
                }
            ],
        },
    }


def crd_yaml() -> str:
    """The manifest as text, as it is committed."""
    head = "# Made from turnmill.jobs by `turnmill crd`.\n"
    return head + yaml.safe_dump(custom_resource_definition(), sort_keys=False, allow_unicode=True, width=110)


def _root() -> Schema:
    spec = structural(JobSpec)
    spec["x-kubernetes-validations"] = [_validation(rule) for rule in RULES]
    status = structural(JobStatus)
    status["properties"]["conditions"] |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    return {
        "description": AgentTrainingJob.__doc__,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
        "x-kubernetes-validations": [NAME_RULE],
    }


def _validation(rule: Rule) -> Schema:
    """A rule across fields in CEL, with the sentence that the command line says."""
    # A message with values in it is made by CEL too, and numbers as text go over the API server's cost budget.
    return {
        "rule": rule.cel,
        "fieldPath": f".{rule.path}",
        "message": rule.message,
        "reason": "FieldValueInvalid",
    }


def structural(model: type[Settings]) -> Schema:
    """The schema of a section without references, as the API server asks for."""
    schema = model.model_json_schema(by_alias=True)
    return _node(schema, schema.get("$defs", {}))


def _node(schema: Schema, definitions: Schema) -> Schema:
    schema, nullable = _resolved(schema, definitions)
    node: Schema = {key: schema[key] for key in KEPT if key in schema}
    node["type"] = schema["type"]
    if nullable:
        node["nullable"] = True
    if "const" in schema:
        node["enum"] = [schema["const"]]
    if schema["type"] == "integer":
        node["format"] = "int64"
    for bound, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if bound in schema:
            node |= {limit: schema[bound], bound: True}
    if "items" in schema:
        node["items"] = _node(schema["items"], definitions)
    if schema["type"] == "object":
        node |= _object(schema, definitions)
    if schema.get("default") is not None:
        # A section's own defaults are filled in field by field, below it.
        node["default"] = {} if "properties" in schema else schema["default"]
    return node


def _object(schema: Schema, definitions: Schema) -> Schema:
    if "properties" in schema:
        properties = {name: _node(child, definitions) for name, child in schema["properties"].items()}
        required = schema.get("required")
        return {"properties": properties} | ({"required": required} if required else {})
    entries = {"maxProperties": schema["maxProperties"]} if "maxProperties" in schema else {}
    if schema.get("additionalProperties") is True:
        return entries | {"x-kubernetes-preserve-unknown-fields": True}
    return entries | {"additionalProperties": {"type": "string", "maxLength": MAX_ENTRY_LENGTH}}


def _resolved(schema: Schema, definitions: Schema) -> tuple[Schema, bool]:
    """The schema with its reference followed and `or null` taken out, and whether null was there."""
    nullable = False
    if "anyOf" in schema:
        (choice,) = [choice for choice in schema["anyOf"] if choice.get("type") != "null"]
        nullable = len(schema["anyOf"]) > 1
        schema = choice | {key: value for key, value in schema.items() if key != "anyOf"}
    if "$ref" in schema:
        definition = definitions[schema["$ref"].removeprefix("#/$defs/")]
        schema = definition | {key: value for key, value in schema.items() if key != "$ref"}
    return schema, nullable
