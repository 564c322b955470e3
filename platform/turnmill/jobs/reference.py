"""Generator of the job file's reference: `python -m turnmill.jobs.reference > docs/jobs.md`."""

import json
import sys
from collections.abc import Iterator

from turnmill.jobs.crd import Schema, structural
from turnmill.jobs.job import API_VERSION, KIND, JobSpec, Metadata
from turnmill.jobs.rule import Rule
from turnmill.jobs.rules import RULES
from turnmill.jobs.settings import Settings
from turnmill.jobs.values import fields_by_alias, tag_of, variants_of

HEAD = f"""\
# The job file

<!-- Made from the models in turnmill.jobs by `make crds`; change the sentences there. -->

A job file is YAML and begins with `apiVersion: {API_VERSION}` and `kind: {KIND}`. The same file
runs on a laptop (`turnmill run job.yaml`) and in a cluster (`kubectl apply -f job.yaml`). `turnmill check job.yaml`
reports everything that is wrong with it, each with its line, and starts nothing. `--set training.steps=3` takes the
place of a field for once; a path that does not begin with `metadata` begins at `spec`.

A field that this page does not list is refused. Examples are in `manifests/examples/`.
"""

RULES_HEAD = """\
## Rules across fields

The command line and the API server hold the same ones. Besides, the folder in `spec.model.path` must hold a model and
its tokenizer, `spec.environment` must name an environment, a task and options that exist, and every name in
`spec.verl` must be a setting of verl's. A type that is a class of your own (`package.module:Class`) must be importable
where the job runs, and its class checks `options`: the API server and the operator do not ([plug-ins](plugins.md)).
"""


def reference() -> str:
    """Return the whole page."""
    parts = [HEAD, *_sections("metadata", Metadata), *_sections("spec", JobSpec), RULES_HEAD]
    rules = "".join(f"- `spec.{rule.path}` {rule.message}{_judged_for(rule)}.\n" for rule in RULES)
    return "\n".join([*parts, rules])


def _judged_for(rule: Rule) -> str:
    """Return the types for which a rule applies."""
    types = " and ".join(f"`{value}`" if isinstance(value, str) else _one_of(value) for _, value in rule.only)
    return f" (with {types})" if types else ""


def _one_of(words: tuple[str, ...]) -> str:
    return " or ".join(f"`{word}`" for word in words)


def _sections(path: str, model: type[Settings], kind: str = "") -> Iterator[str]:
    """Yield a heading and a table for the section, then its subsections."""
    schema = structural(model)
    rows = "".join(_row(name, child, schema.get("required", ())) for name, child in schema["properties"].items())
    head = "| field | type | default | meaning |\n| --- | --- | --- | --- |"
    yield f"## `{path}`{kind}\n\n{model.__doc__}\n\n{head}\n{rows}"
    for name, field in fields_by_alias(model).items():
        variants = variants_of(field)
        for section in variants:
            kind = f", type {tag_of(section)}" if len(variants) > 1 else ""
            yield from _sections(f"{path}.{name}", section, kind)


def _row(name: str, schema: Schema, required: tuple[str, ...]) -> str:
    if name in required:
        default = "**required**"
    elif "default" not in schema:
        default = "–"
    else:
        default = "" if schema["default"] in ({}, "") else f"`{_plain(schema['default'])}`"
    return f"| `{name}` | {_type(schema)} | {default} | {schema['description']} |\n"


def _type(schema: Schema) -> str:
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    kind = schema["type"]
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    if kind == "object":
        return "section" if "properties" in schema else "names and values"
    word = {"integer": "whole number", "number": "number", "boolean": "`true` or `false`", "string": "text"}[kind]
    return f"{word}{_range(schema)}"


def _range(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None or high is None:
        return ""
    above = "above " if schema.get("exclusiveMinimum") else ""
    return f", {above}{_plain(low)} to {_plain(high)}"


def _plain(value: object) -> str:
    """Format a value as in YAML."""
    if isinstance(value, float) and not isinstance(value, bool):
        return f"{value:.15g}"
    return value if isinstance(value, str) else json.dumps(value)


if __name__ == "__main__":
    sys.stdout.write(reference())
