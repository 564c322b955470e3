"""Demonstrations of tasks with tools as token ids: what is said is imitated, what tools answer is only read."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Protocol

from transformers import PreTrainedTokenizerFast

from turnmill.core.errors import SettingsError
from turnmill.jobs.model import WarmStart
from turnmill.tasks import Task, TaskSource
from turnmill.tasks.arithmetic import DemonstratedResponse
from turnmill.training.warm_start.cloning import Row
from turnmill.training.warm_start.rows import next_token_distributions
from turnmill.training.warm_start.tokenizer import END, build_tokenizer


class Teacher(Protocol):
    """A source of tasks with demonstrations, which a warm start imitates."""

    words: Sequence[str]

    def demonstrations(self, seed: int, count: int) -> Iterator[tuple[Task, list[DemonstratedResponse]]]:
        """Tasks, and what is said in them."""
        ...


def teacher_of(source: TaskSource) -> Teacher:
    """The teacher of a source that has a method `demonstrations`; others cannot be warm-started."""
    if not hasattr(source, "demonstrations"):
        raise SettingsError(
            f"model.warmStart: the tasks {source.name!r} have no demonstrations to imitate. "
            "Give model.path a folder with a model."
        )
    teacher: Teacher = source  # type: ignore[assignment]
    return teacher


def build_task_rows(
    teacher: Teacher, settings: WarmStart, *, turn_break: str = "\n"
) -> tuple[PreTrainedTokenizerFast, list[Row]]:
    """A tokenizer for the language of the tasks, and `settings.turns` responses in its ids."""
    tokenizer = build_tokenizer(teacher.words)
    rows = islice(_rows(teacher, tokenizer, settings, turn_break), settings.turns)
    return tokenizer, list(rows)


def _rows(teacher: Teacher, tokenizer: PreTrainedTokenizerFast, settings: WarmStart, turn_break: str) -> Iterator[Row]:
    @cache
    def encode(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    for task, responses in teacher.demonstrations(settings.seed, settings.turns):
        prompt = tokenizer.apply_chat_template(
            [dict(message) for message in task.messages], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        for number, response in enumerate(responses):
            generated = encode(response.response)
            if number == len(responses) - 1:
                generated = (*generated, tokenizer.eos_token_id)
            probabilities = {encode(text): share for text, share in response.probabilities.items()}
            targets = next_token_distributions(generated, probabilities, vocabulary=len(tokenizer))
            context = response.context.replace(f"{END}\n", f"{END}{turn_break}")
            yield Row((*prompt, *encode(context)), generated, targets)
