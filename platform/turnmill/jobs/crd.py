"""Generator of the CustomResourceDefinition from the models: schema, defaults, rules in a section, columns."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from turnmill.jobs.admission_policy import admission_policy
from turnmill.jobs.job import API_VERSION, KIND, AgentTrainingJob, JobSpec
from turnmill.jobs.settings import PLUGIN, Settings
from turnmill.jobs.status import JobStatus

PLURAL = "agenttrainingjobs"
GROUP, VERSION = API_VERSION.split("/")
MAX_ENTRY_LENGTH = 1024

Schema = dict[str, Any]

COLUMNS = (
    ("State", "string", ".status.state"),
    ("Step", "integer", ".status.progress.step"),
    ("Reward", "number", ".status.progress.rewardMean"),
    ("Rollouts/s", "number", ".status.progress.rolloutsPerSecond"),
    ("Age", "date", ".metadata.creationTimestamp"),
)
WIDE_COLUMNS = (
    ("Attempt", "integer", ".status.attempt"),
    ("Failed share", "number", ".status.progress.infraFailedRatio"),
    ("Cluster", "string", ".status.cluster"),
    ("Checkpoint", "integer", ".status.progress.checkpointStep"),
)

# Keywords that JSON Schema and the API server's structural schemas share.
KEPT = (
    *("description", "enum", "format", "pattern"),
    *("maximum", "minimum", "maxLength", "minLength", "maxItems", "minItems"),
)

NAME_RULE = {
    "rule": "self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "message": "metadata.name must be at most 40 lower-case letters, digits and dashes, with a letter first",
}


def custom_resource_definition() -> dict[str, Any]:
    """Return the manifest of the CustomResourceDefinition."""
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
                        {"name": name, "type": kind, "jsonPath": path, "priority": priority}
                        for priority, columns in enumerate((COLUMNS, WIDE_COLUMNS))
                        for name, kind, path in columns
                    ],
                    "schema": {"openAPIV3Schema": _root()},
                }
            ],
        },
    }


def crd_yaml() -> str:
    """Return the manifests as YAML, as they are committed."""
    head = "# Made from turnmill.jobs by `turnmill crd`.\n"
    return head + yaml.dump_all(
        [custom_resource_definition(), *admission_policy(PLURAL, GROUP)],
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=110,
    )


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def _root() -> Schema:
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
            "spec": structural(JobSpec),
            "status": status,
        },
        "x-kubernetes-validations": [NAME_RULE],
    }


def _validation(rule: str, path: str, message: str) -> Schema:
    """Return a rule in CEL, with the command line's message."""
    # Messages with values would be CEL expressions, and formatting numbers exceeds the API server's cost budget.
    return {"rule": rule, "fieldPath": f".{path}", "message": message, "reason": "FieldValueInvalid"}


def structural(model: type[Settings]) -> Schema:
    """Return the schema of a section without references, as the API server requires."""
    schema = model.model_json_schema(by_alias=True)
    return _node(schema, schema.get("$defs", {}))


def _node(schema: Schema, definitions: Schema) -> Schema:
    schema, nullable = _resolved(schema, definitions)
    if "oneOf" in schema:
        return _union(schema, definitions)
    node: Schema = {key: schema[key] for key in KEPT if key in schema}
    if "description" in node:
        # A sentence may take two lines in the model, and one in a table.
        node["description"] = " ".join(node["description"].split())
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


def _union(schema: Schema, definitions: Schema) -> Schema:
    """Merge sections of several types into one: structural schemas have no unions."""
    variants = [_node(choice, definitions) for choice in schema["oneOf"]]
    types = [variant["properties"]["type"].get("enum", [PLUGIN])[0] for variant in variants]
    names = list(dict.fromkeys(name for variant in variants for name in variant["properties"]))
    properties: Schema = {"type": {"description": "Which of them it is.", "type": "string", "default": types[0]}}
    if PLUGIN in types:
        plugin = variants[types.index(PLUGIN)]["properties"]["type"]
        named = "|".join([*(kind for kind in types if kind != PLUGIN), plugin["pattern"].strip("^$")])
        properties["type"] |= {"maxLength": plugin["maxLength"], "pattern": f"^({named})$"}
    else:
        properties["type"]["enum"] = types
    for name in names[1:]:
        own = {kind: v["properties"][name] for kind, v in zip(types, variants, strict=True) if name in v["properties"]}
        nodes = list(own.values())
        shared = len(own) == len(types) and all(node == nodes[0] for node in nodes)
        properties[name] = nodes[0] if shared else _for_some_types(own)
    node = {"description": schema["description"], "type": "object", "properties": properties}
    owners: dict[tuple[str, ...], list[str]] = {}
    for name in names[1:]:
        kinds = tuple(kind for kind, v in zip(types, variants, strict=True) if name in v["properties"])
        owners.setdefault(kinds, []).append(name)
    node["x-kubernetes-validations"] = [
        _only_with(kinds, fields) for kinds, fields in owners.items() if len(kinds) < len(types)
    ]
    node["x-kubernetes-validations"] += [
        rule
        for kind, variant in zip(types, variants, strict=True)
        for name in names[1:]
        for rule in _narrower_with(kind, name, variant["properties"].get(name, {}), properties[name])
    ]
    return node | {"default": {}}


def _for_some_types(own: Mapping[str, Schema]) -> Schema:
    """Merge the schemas of a field that only some types have; without a default, which would apply to all types."""
    first, *others = own.values()
    node = {key: value for key, value in first.items() if key != "default"}
    for other in others:
        node |= {"minimum": min(node["minimum"], other["minimum"])} if "minimum" in node else {}
        node |= {"maximum": max(node["maximum"], other["maximum"])} if "maximum" in node else {}
    texts = dict.fromkeys(child["description"] for child in own.values())
    node["description"] = f"With {' or '.join(own)}: {' '.join(texts)}"
    return node


def _only_with(kinds: Sequence[str], names: Sequence[str]) -> Schema:
    given = " || ".join(f"has(self.{name})" for name in names)
    them = f"type {kinds[0]} has" if len(kinds) == 1 else f"types {', '.join(kinds)} have"
    return {
        "rule": f"{_is_one_of(kinds)} || !({given})",
        "message": f"fields that only {them}: {', '.join(names)}",
        "reason": "FieldValueInvalid",
    }


def _is_one_of(kinds: Sequence[str]) -> str:
    """Return the condition, in CEL, that a section has one of these types."""
    named = [kind for kind in kinds if kind != PLUGIN]
    conditions = ([f"self.type in {named}"] if named else []) + ["self.type.contains(':')"] * (PLUGIN in kinds)
    return " || ".join(conditions)


def _is_not(kind: str) -> str:
    """Return the condition, in CEL, that a section has another type."""
    return "!self.type.contains(':')" if kind == PLUGIN else f"self.type != '{kind}'"


def _narrower_with(kind: str, name: str, own: Schema, shared: Schema) -> Iterator[Schema]:
    """Yield rules for bounds of a field that are narrower with one type than in the schema that all types share."""
    for bound, compares, sentence in (("minimum", ">=", "at least"), ("maximum", "<=", "at most")):
        if bound in own and own[bound] != shared[bound]:
            number = f"{own[bound]:.15g}"
            yield _validation(
                f"{_is_not(kind)} || !has(self.{name}) || self.{name} {compares} {number}",
                name,
                f"must be {sentence} {number}",
            )


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
    """Return the schema with its reference resolved and `or null` removed, and whether null was allowed."""
    nullable = False
    if "anyOf" in schema:
        (choice,) = [choice for choice in schema["anyOf"] if choice.get("type") != "null"]
        nullable = len(schema["anyOf"]) > 1
        schema = choice | {key: value for key, value in schema.items() if key != "anyOf"}
    if "$ref" in schema:
        definition = definitions[schema["$ref"].removeprefix("#/$defs/")]
        schema = definition | {key: value for key, value in schema.items() if key != "$ref"}
    return schema, nullable
