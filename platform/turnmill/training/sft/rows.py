"""The rows that a fine-tuning learns from, and their order."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from turnmill.core.errors import SettingsError
from turnmill.jobs.fine_tuning import FineTuningSettings
from turnmill.training.sft.conversations import read_conversations
from turnmill.training.sft.run_rows import chosen_episodes, require_vocabulary, trajectory_rows
from turnmill.training.sft.tokens import TokenRow, conversation_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of at most `maxLength` tokens, and the number of those that were longer."""

    kept: tuple[TokenRow, ...]
    num_too_long: int

    def batch(self, step: int, size: int, seed: int) -> list[TokenRow]:
        """Return the rows of a step, from 1: the next ones of an endless series of epochs, each in an order of its own.

        They follow from the step and the seed alone, so that a resumed run needs no other state.
        """
        count = len(self.kept)
        places = range((step - 1) * size, step * size)
        epochs = {place // count for place in places}
        orders = {epoch: np.random.default_rng((seed, epoch)).permutation(count) for epoch in epochs}
        return [self.kept[orders[n // count][n % count]] for n in places]


def read_rows(settings: FineTuningSettings, tokenizer: "PreTrainedTokenizerFast", place: str) -> Rows:
    """Read all rows that the section `place` of a job names. Raises SettingsError if it cannot be learned from them."""
    return fitting(_rows(settings, tokenizer, place), settings.max_length, place)


def read_source(settings: FineTuningSettings, place: str) -> None:
    """Read conversations or trajectories without making tokens of them. Raises SettingsError as `read_rows` does."""
    if settings.data is not None:
        read_conversations(Path(settings.data), f"{place}.data")
    elif settings.from_run is not None:
        chosen_episodes(Path(settings.from_run), settings.min_reward, f"{place}.fromRun")


def read_validation_rows(path: str, tokenizer: "PreTrainedTokenizerFast", max_length: int) -> Rows:
    """Read the rows of the file in `algorithm.validationData`."""
    rows = _rows_of_file(path, tokenizer, "algorithm.validationData")
    return fitting(rows, max_length, "algorithm")


def fitting(rows: Iterable[TokenRow], max_length: int, place: str) -> Rows:
    """Return the rows that are short enough. Raises SettingsError if there are none."""
    kept, shortest, num_too_long = [], 0, 0
    for row in rows:
        if len(row.ids) <= max_length:
            kept.append(row)
        else:
            num_too_long += 1
            shortest = min(shortest or len(row.ids), len(row.ids))
    if not kept:
        raise SettingsError(
            f"{place}.maxLength: {max_length} is less than all rows have. Set it to {shortest} or more."
        )
    return Rows(tuple(kept), num_too_long)


def _rows(settings: FineTuningSettings, tokenizer: "PreTrainedTokenizerFast", place: str) -> Iterator[TokenRow]:
    if settings.data is not None:
        yield from _rows_of_file(settings.data, tokenizer, f"{place}.data")
        return
    assert settings.from_run is not None
    run_dir = Path(settings.from_run)
    episodes = chosen_episodes(run_dir, settings.min_reward, f"{place}.fromRun")
    require_vocabulary(run_dir, tokenizer, f"{place}.fromRun")
    yield from trajectory_rows(run_dir, episodes)


def _rows_of_file(path: str, tokenizer: "PreTrainedTokenizerFast", place: str) -> Iterator[TokenRow]:
    conversations = read_conversations(Path(path), place)
    if tokenizer.chat_template is None:
        raise SettingsError(
            "model.path: the model has no chat template, which makes tokens of messages. Add chat_template.jinja to "
            "its folder, or take a model that was trained for chats."
        )
    for conversation in conversations:
        yield from conversation_rows(conversation, tokenizer)
