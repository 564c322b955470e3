"""Validation of a job's data: the result is the job, or all of its problems."""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from turnmill.jobs.job import API_VERSION, KIND, AgentTrainingJob
from turnmill.jobs.problems import MISSING, JobError, Problem
from turnmill.jobs.rules import broken_rules
from turnmill.jobs.settings import Settings
from turnmill.jobs.values import BrokenValueError, Values, fields_by_alias, tag_of, variants_of
from turnmill.jobs.verl_settings import broken_settings
from turnmill.jobs.verlog_agent import PROMPTS
from turnmill.jobs.yaml_file import Path, dotted

Check = Callable[[Values], Iterable[Problem]]

TYPE_RULES = {
    "int_type": ("must be a whole number", "Write it without quotes and without a fraction."),
    "float_type": ("must be a number", "Write it without quotes."),
    "finite_number": ("must be a finite number", "Leave it out for the default."),
    "bool_type": ("must be true or false", "Write it without quotes."),
    "string_type": ("must be text", "Put it in quotes."),
    "invalid_key": ("is a name that is no text", "Put it in quotes."),
    "tuple_type": ("must be a list", "Write it as [first, second]."),
    "dict_type": ("must be a mapping of names to values", "Write one `name: value` on each line below it."),
    "model_type": (
        "must be a section with fields of its own",
        "Write its fields on lines below it, or leave it out.",
    ),
    "model_attributes_type": ("must be a section with fields of its own", "Write its fields on the lines below it."),
}


# Fields that the API server and controllers add to an object; a job that is read from a cluster has them.
SERVER_FIELDS = frozenset(
    {
        *("creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers", "generateName"),
        *("generation", "managedFields", "ownerReferences", "resourceVersion", "selfLink", "uid"),
    }
)


def validate(data: Mapping[str, object], checks: Sequence[Check] = ()) -> tuple[AgentTrainingJob | None, list[Problem]]:
    """Return the job, or None and all problems: of single fields, across fields, and of further checks."""
    data = without_server_fields(data)
    job, problems, broken = None, list(_head_problems(data)), []
    try:
        job = AgentTrainingJob.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        for details in error.errors():
            place = locate(tuple(part for part in details["loc"] if part != "[key]"))
            broken.append(place.path)
            problems.append(field_problem(place, details))
    problems.extend(_check(Values(data, AgentTrainingJob, broken), (broken_rules, broken_settings, *checks)))
    return (None if problems else job), problems


def _check(values: Values, checks: Iterable[Check]) -> Iterable[Problem]:
    for check in checks:
        # A check that reads a broken value ends there: the value has its problem already.
        with suppress(BrokenValueError):
            yield from check(values)


def parse_job(data: Mapping[str, object], checks: Sequence[Check] = ()) -> AgentTrainingJob:
    """Parse the job in a mapping, such as a custom resource. Raises JobError with all problems."""
    job, problems = validate(data, checks)
    if job is None:
        raise JobError(problems)
    return job


def check_job(job: AgentTrainingJob, checks: Sequence[Check]) -> None:
    """Run further checks on a parsed job. Raises JobError with all problems that they find."""
    data = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    if problems := [*_check(Values(data, AgentTrainingJob), checks)]:
        raise JobError(problems)


def without_server_fields(data: Mapping[str, object]) -> dict[str, object]:
    """Return a job from a cluster without `status` and the metadata that the API server adds."""
    kept = {name: value for name, value in data.items() if name != "status"}
    if isinstance(metadata := kept.get("metadata"), Mapping):
        kept["metadata"] = {name: value for name, value in metadata.items() if name not in SERVER_FIELDS}
    return kept


def _head_problems(data: Mapping[str, object]) -> Iterable[Problem]:
    """Yield problems of fields that every Kubernetes object must have, though the models have defaults for them."""
    for name, word in (("apiVersion", API_VERSION), ("kind", KIND)):
        if name not in data:
            yield Problem(name, MISSING, "is missing", f"Add `{name}: {word}`.")


@dataclass(frozen=True, slots=True)
class Place:
    """Location of a problem in a job."""

    path: Path
    """Path in the file, without the types that pydantic inserts for unions."""

    section: type[Settings] | None
    """Section of the field."""

    field: FieldInfo | None


def locate(location: Path) -> Place:
    """Translate a location in pydantic's model to one in the file."""
    path: list[str | int] = []
    section: type[Settings] | None = AgentTrainingJob
    field: FieldInfo | None = None
    below: tuple[type[Settings], ...] = (AgentTrainingJob,)
    for part in location:
        by_tag = {tag_of(variant): variant for variant in below} if len(below) > 1 else {}
        if part in by_tag:
            below = (by_tag[str(part)],)
            continue
        path.append(part)
        if isinstance(part, str):
            section = below[0] if below else None
            field = fields_by_alias(section).get(part) if section else None
            below = variants_of(field) if field else ()
    return Place(tuple(path), section, field)


def field_problem(place: Place, details: ErrorDetails) -> Problem:
    """Describe a validation error of pydantic: the field, its value, the rule and the way out."""
    path, field = place.path, place.field
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_field(place, value)
    if kind == "union_tag_invalid" and field:
        named, allowed = value["type"], [tag_of(variant) for variant in variants_of(field)]
        return Problem(
            dotted((*path, "type")),
            named,
            f"must be {_one_of(allowed)}",
            _suggest(str(named), allowed, "Choose one of them."),
        )
    if kind == "missing":
        meaning = (field.description if field else None) or "it is required."
        return Problem(dotted(path), MISSING, "is missing", f"Add it: {meaning}")
    if kind == "literal_error" and (allowed := [str(choice) for choice in _choices(field)]):
        return Problem(
            dotted(path), value, f"must be {_one_of(allowed)}", _suggest(str(value), allowed, "Choose one of them.")
        )
    rule, way_out = _bound_rule(kind, context) or TYPE_RULES.get(kind, (_lower(details["msg"]), "Correct it."))
    if kind == "string_pattern_mismatch" and path in _OF_PATTERNS:
        rule, way_out = _OF_PATTERNS[path]
    if kind == "string_pattern_mismatch" and path == ("metadata", "name"):
        rule, way_out = (
            "must be lower-case letters, digits and dashes, with a letter first and no dash last",
            f"Try {_as_name(value)}.",
        )
    if kind == "string_pattern_mismatch" and path == ("spec", "agent", "prompt"):
        rule = f"must be {', '.join(PROMPTS)}, a file (.txt, .md) or package.module:function"
        way_out = _suggest(value, PROMPTS, "Choose one of them.")
    return Problem(dotted(path), value, rule, way_out)


_OF_PATTERNS: Mapping[tuple[str | int, ...], tuple[str, str]] = {
    ("spec", "agent", "entryPoint"): (
        "must be package.module:function or /FOLDER/FILE.py:function",
        "Name the function after a colon.",
    ),
    ("spec", "agent", "url"): ("must begin with http:// or https://", "Try http://agent:8000/play."),
}


def _bound_rule(kind: str, context: Mapping[str, object]) -> tuple[str, str] | None:
    sentences = {
        "greater_than_equal": ("at least {ge}", "Try {ge}."),
        "greater_than": ("greater than {gt}", "Take a larger number."),
        "less_than_equal": ("at most {le}", "Try {le}."),
        "less_than": ("less than {lt}", "Take a smaller number."),
        "string_too_long": ("at most {max_length} characters long", "Shorten it."),
        "string_too_short": ("at least {min_length} characters long", "Fill it in or leave it out."),
        "too_long": ("at most {max_length} entries long", "Shorten it."),
        "too_short": ("at least {min_length} entries long", "Fill it in or leave it out."),
    }
    if kind not in sentences:
        return None
    rule, way_out = sentences[kind]
    return f"must be {rule.format(**context)}", way_out.format(**context)


def _unknown_field(place: Place, value: object) -> Problem:
    path, name = place.path, str(place.path[-1])
    known = list(fields_by_alias(place.section)) if place.section else []
    whole = dotted(path[:-1]) or f"an {KIND}"
    shown = MISSING if isinstance(value, (Mapping, list)) else value
    otherwise = f"There is {', '.join(known)}." if known else "Leave it out."
    return Problem(dotted(path), shown, f"is no field of {whole}", _suggest(name, known, otherwise))


def _suggest(word: str, known: Sequence[str], otherwise: str) -> str:
    """Suggest the closest word, or return another sentence if none is close."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.replace("_", "").replace("-", "").lower(), by_lower, n=1, cutoff=0.6)
    return f"Did you mean {by_lower[close[0]]}?" if close else otherwise


def _choices(field: FieldInfo | None) -> list[object]:
    """Return the words of all Literals in the annotation."""
    return _flat(get_args(field.annotation)) if field else []


def _flat(arguments: Iterable[object]) -> list[object]:
    words: list[object] = []
    for argument in arguments:
        words.extend([argument] if isinstance(argument, str) else _flat(get_args(argument)))
    return words


def _one_of(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _as_name(value: object) -> str:
    """Return the allowed name of a job that is closest to a value."""
    kept = "".join(char if char.isascii() and char.isalnum() else "-" for char in str(value).lower()).strip("-")
    return kept[:40].strip("-") if kept[:1].isalpha() else f"job-{kept}"[:40].strip("-")


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
