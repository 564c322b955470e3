"""Reading and writing of job files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path as FilePath

import yaml

from turnmill.jobs.hub import fetch_command, local_folder, may_download
from turnmill.jobs.job import KIND, AgentTrainingJob
from turnmill.jobs.overrides import apply_overrides
from turnmill.jobs.problems import MISSING, JobError, Problem
from turnmill.jobs.validation import Check, validate
from turnmill.jobs.values import Values
from turnmill.jobs.yaml_file import Document, Path, dotted, parse_yaml


def load_job(
    path: FilePath | str,
    overrides: Sequence[str] = (),
    *,
    checks: Sequence[Check] = (),
    for_cluster: bool = False,
) -> AgentTrainingJob:
    """Load the job in a file, with `path=value` overrides; the model of one `for_cluster` need not be on this machine.

    Raises JobError with all problems, in the file's order.
    """
    document = _read(FilePath(path))
    data, places, problems = apply_overrides(document.value, overrides)
    origins = {dotted(place): f"line {line}" for place, line in document.lines.items()}
    problems.extend(document.problems)
    job, found = validate(data, checks if for_cluster else (model_folders, *checks))
    problems.extend(replace(problem, origin=_origin(problem.path, origins, places)) for problem in found)
    if job is None or problems:
        raise JobError(sorted(problems, key=lambda problem: _line(problem.origin)))
    return job


@lru_cache(maxsize=4)
def job_from_json(text: str) -> AgentTrainingJob:
    """Parse the output of `model_dump_json(by_alias=True)`; equal texts give the same object in a process."""
    return AgentTrainingJob.model_validate_json(text)


def dump_job(job: AgentTrainingJob) -> str:
    """Return the job as YAML, with all defaults."""
    data = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)


def model_folders(values: Values) -> Iterator[Problem]:
    """Yield a problem for each folder that contains no model, and for each model of the hub that cannot be had."""
    if (path := values["spec.model.path"]) is not None:
        yield from _folder_problems("spec.model.path", path)
    if values["spec.rewardModel"] is not None:
        yield from _folder_problems("spec.rewardModel.path", values["spec.rewardModel.path"])


def _folder_problems(place: str, path: str) -> Iterator[Problem]:
    folder = local_folder(path)
    if folder is None:
        if not may_download():
            way_out = f"Fetch it with `{fetch_command(path)}` where the network is, or unset HF_HUB_OFFLINE."
            yield Problem(place, path, "is not in the cache of the Hugging Face hub on this machine", way_out)
        return
    if not folder.is_dir():
        way_out = "Download the model, and give its folder, or its name on the Hugging Face hub as owner/name."
        yield Problem(place, path, "is no folder on this machine", way_out)
        return
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (folder / name).is_file()]
    if missing:
        way_out = "Give a folder as save_pretrained of transformers leaves it, with model and tokenizer."
        yield Problem(place, path, f"has no {' and no '.join(missing)}", way_out)


def _read(path: FilePath) -> Document:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise _file_error(path, "there is no such file", "Check the path.") from None
    except IsADirectoryError:
        raise _file_error(path, "is a folder", "Give the job file in it.") from None
    except UnicodeDecodeError:
        raise _file_error(path, "is not text", "Save it as UTF-8.") from None
    except OSError as error:
        raise _file_error(path, f"cannot be read: {error.strerror}", "Check who may read it.") from error
    document = parse_yaml(text)
    if document.value is None:
        raise _file_error(path, "is empty", f"Write a job into it, starting with `kind: {KIND}`.")
    if not isinstance(document.value, Mapping):
        kind = "a list" if isinstance(document.value, list) else "a single value"
        raise _file_error(path, f"holds {kind} instead of a mapping", f"Start it with `kind: {KIND}`.")
    return document


def _file_error(path: FilePath, rule: str, way_out: str) -> JobError:
    return JobError([Problem(str(path), MISSING, rule, way_out)])


def _origin(path: str, origins: Mapping[str, str], overridden: Sequence[Path]) -> str | None:
    """Return the origin of a value: an override, its line, or the line of the section in which it is missing."""
    for place in map(dotted, overridden):
        if path == place or path.startswith(f"{place}."):
            return "--set"
    while path and path not in origins:
        path = path.rpartition(".")[0]
    return origins.get(path)


def _line(origin: str | None) -> float:
    number = (origin or "").removeprefix("line ")
    return int(number) if number.isdigit() else float("inf")
