"""Settings in `spec.verl`, by verl's dotted names."""

from collections.abc import Iterator, Mapping
from typing import Any

from turnmill.jobs.problems import Problem
from turnmill.jobs.values import Values

VerlSettings = dict[str, object]
"""Settings of verl by their dotted names, such as `actor_rollout_ref.rollout.top_p`."""

TENSOR_PARALLEL = "actor_rollout_ref.rollout.tensor_model_parallel_size"


def setting(settings: Mapping[str, Any], name: str, default: Any) -> Any:
    """Return a setting by its whole dotted name, also if it is nested in a mapping; the last one counts."""
    found = default
    for key, value in settings.items():
        if key == name:
            found = value
        elif name.startswith(f"{key}.") and isinstance(value, Mapping):
            found = setting(value, name.removeprefix(f"{key}."), found)
    return found


def gpus_per_engine(given: int | None, settings: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the GPUs of an engine and the field that sets them: `given` in `resources.rollout`, or one of verl's."""
    if given is not None:
        return given, "spec.resources.rollout.tensorParallel"
    return setting(settings, TENSOR_PARALLEL, 1), f"spec.verl.{TENSOR_PARALLEL}"


def broken_settings(values: Values) -> Iterator[Problem]:
    """Yield problems of settings that turnmill needs itself: the GPUs per engine decide the placement."""
    given = values["spec.resources.rollout.tensorParallel"]
    size, place = gpus_per_engine(given, values["spec.verl"])
    if (other := setting(values["spec.verl"], TENSOR_PARALLEL, None)) is not None and given is not None:
        yield Problem(f"spec.verl.{TENSOR_PARALLEL}", other, f"is set a second time, beside {place}", "Take it out.")
    if type(size) is not int or size < 1:
        yield Problem(place, size, "must be a whole number, at least 1", "Try 1.")
        return
    gpus = values["spec.resources.train.nodes"] * values["spec.resources.train.gpusPerNode"]
    if values["spec.training.mode"] != "separate_async" and gpus % size:
        rule = f"must divide the GPUs of spec.resources.train ({gpus}), on which engines are as well"
        yield Problem(place, size, rule, "Try 1, or ask for more GPUs.")
