"""What `turnmill check` says about the data of a fine-tuning."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from turnmill.core.errors import SettingsError
from turnmill.jobs.fine_tuning import FineTuningSettings
from turnmill.jobs.hub import local_folder
from turnmill.jobs.problems import Problem, problems_of
from turnmill.jobs.values import Values
from turnmill.training.sft.rows import read_rows, read_source, read_validation_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def problems(values: Values, place: str) -> Iterator[Problem]:
    """Yield a problem if nothing can be learned from the data that a section names, as far as this machine can tell."""
    settings = FineTuningSettings(**{name: values[f"{place}.{alias}"] for name, alias in _READ.items()})
    validation = values["spec.algorithm.validationData"] if place == "spec.algorithm" else None
    section = place.removeprefix("spec.")
    try:
        tokenizer = _tokenizer(values["spec.model.path"])
        if tokenizer is None:
            read_source(settings, section)
        else:
            read_rows(settings, tokenizer, section)
        if validation is not None and tokenizer is not None:
            read_validation_rows(validation, tokenizer, settings.max_length)
    except SettingsError as error:
        yield from problems_of(error)


def _tokenizer(model: str | None) -> "PreTrainedTokenizerFast | None":
    """Return the model's tokenizer; None if the model is made or downloaded when the run starts."""
    folder = local_folder(model) if model is not None else None
    if folder is None or not (folder / "tokenizer_config.json").is_file():
        return None
    # transformers takes seconds to import.
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(folder)
    except Exception as error:
        # A damaged file raises whatever its reader stumbles over, in several lines or a word.
        reason = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
        raise SettingsError(f"model.path: {str(folder)!r} has no tokenizer that loads: {reason}.") from error
    return tokenizer


_READ = {"data": "data", "from_run": "fromRun", "min_reward": "minReward", "max_length": "maxLength"}
