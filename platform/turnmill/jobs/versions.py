"""Compatibility of jobs between versions of turnmill: a newer CRD may add fields that an older program lacks."""

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from turnmill.jobs.job import AgentTrainingJob
from turnmill.jobs.settings import Settings
from turnmill.jobs.validation import locate, without_server_fields
from turnmill.jobs.yaml_file import dotted

TAG = "type"


def changed_fields(job: AgentTrainingJob) -> dict[str, Any]:
    """Return the job as JSON with only the fields that differ from the defaults, for versions that lack the others."""
    dumped = job.model_dump(mode="json", by_alias=True)
    return {"apiVersion": job.api_version, "kind": job.kind} | _changed(job, dumped)


def known_fields(resource: Mapping[str, object]) -> tuple[dict[str, Any], list[str]]:
    """Return a resource from the API server without the fields of newer versions, and the names of these fields.

    The API server refuses fields that its CRD does not have, so an unknown field is one of a newer version.
    """
    known = copy.deepcopy(without_server_fields(resource))
    try:
        AgentTrainingJob.model_validate(known, by_alias=True, by_name=False)
    except ValidationError as error:
        places = [locate(found["loc"]).path for found in error.errors() if found["type"] == "extra_forbidden"]
        for path in places:
            section: Any = known
            for part in path[:-1]:
                section = section[part]
            del section[path[-1]]
        return known, [dotted(path) for path in places]
    return known, []


def _changed(settings: Settings, dumped: Mapping[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for name, field in type(settings).model_fields.items():
        value, alias = getattr(settings, name), field.alias or name
        if alias != TAG and not field.is_required() and value == field.get_default(call_default_factory=True):
            continue
        changed[alias] = _changed(value, dumped[alias]) if isinstance(value, Settings) else dumped[alias]
    return changed
