"""Options of classes that a job names: environments, task sources, and classes from outside this package."""

from collections.abc import Iterator, Mapping
from typing import TypeVar

from pydantic import ValidationError

from turnmill.core.errors import SettingsError
from turnmill.core.lookup import suggestion
from turnmill.jobs.settings import Settings
from turnmill.jobs.validation import Place, field_problem
from turnmill.jobs.values import fields_by_alias

Options = TypeVar("Options", bound=Settings)


class EnvironmentOptions(Settings):
    """Options of an environment or a task source; each one adds its own fields."""


def read_options(
    model: type[Options], options: Mapping[str, object], setting: str, *, owner: str, by_name: bool = False
) -> Options:
    """Validate the options of `owner`, which a job has at `setting`, such as `environment.options`.

    `by_name` accepts a field's Python name beside its name in the job file. Raises SettingsError with a line for each
    problem.
    """
    try:
        return model.model_validate(dict(options), by_alias=True, by_name=by_name)
    except ValidationError as error:
        raise SettingsError("\n".join(_lines(model, error, setting, owner))) from error


def _lines(model: type[Settings], error: ValidationError, setting: str, owner: str) -> Iterator[str]:
    known = fields_by_alias(model)
    for details in error.errors():
        name, *below = details["loc"] or ("",)
        if details["type"] == "extra_forbidden" and not below:
            way_out = suggestion(str(name), sorted(known)) if known else "It has no options."
            yield f"{setting}.{name}: {owner} has no such option. {way_out}"
        else:
            # Positions in a list are part of the field itself.
            field = known.get(str(name)) if all(isinstance(part, int) for part in below) else None
            yield str(field_problem(Place((*setting.split("."), *details["loc"]), None, field), details))
