"""Tasks from a file: one line or row each."""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from turnmill.core.errors import SettingsError
from turnmill.core.seeds import VALIDATION_SEEDS
from turnmill.jobs.options import EnvironmentOptions
from turnmill.tasks import rewards
from turnmill.tasks.base import Answer, Task, TaskSource, number_of


class DatasetOptions(EnvironmentOptions):
    """Which file, which of its columns, and what an answer is worth."""

    path: str
    """File of tasks, `.jsonl` or `.parquet`."""

    validation_path: str | None = None
    """File of tasks for validations; left out, the last `validationTasks` of `path`, which training leaves out."""

    validation_tasks: int = Field(default=128, ge=0)
    """Tasks of `path` that are kept for validations."""

    prompt_key: str = "prompt"
    """Column of the prompt: messages, or text, which becomes the message of a user."""

    system_prompt: str | None = None
    """Message that comes before every prompt."""

    reward: str = "exact_match"
    """`exact_match`, `boxed_match`, `math_verify`, or `package.module:function` of a function of ours or yours;
    `verl` is what verl has for the row's `data_source`, `verl:FILE:function` a function in verl's form."""


class Dataset(TaskSource):
    """verl's format of data sets: `prompt`, `extra_info`, and `reward_model.ground_truth`."""

    name = "dataset"
    Settings = DatasetOptions

    def __init__(self, options: DatasetOptions, seed: int) -> None:
        super().__init__(options, seed)
        rows = read_rows(Path(options.path), "path")
        if options.validation_path is not None:
            self._validation = read_rows(Path(options.validation_path), "validationPath")
        else:
            kept = min(options.validation_tasks, len(rows) - 1)
            rows, self._validation = rows[: len(rows) - kept], rows[len(rows) - kept :]
        self._training = rows
        self._order: tuple[int, list[int]] = (-1, [])
        self._reward: Callable[..., float] = rewards.find(options.reward)

    def require_json(self) -> None:
        """Name the first row."""
        for row in (*self._training, *self._validation):
            try:
                json.dumps(row.get("extra_info"))
            except (TypeError, ValueError) as error:
                task = str(row[self.options.prompt_key])[:80]
                raise SettingsError(
                    f"environment.options.path: extra_info goes with every tool call, and that of the task {task!r} is "
                    f"no JSON: {error}. Write dates and bytes as text."
                ) from error

    def training(self, number: int) -> Task:
        """Every row once in an order of its own for every pass through the file."""
        turn, position = divmod(number, len(self._training))
        if self._order[0] != turn:
            order = list(range(len(self._training)))
            random.Random(number_of(self.seed, "order", turn)).shuffle(order)
            self._order = (turn, order)
        return self._task(number, self._training[self._order[1][position]])

    def validation(self, number: int) -> Task:
        """The rows in the order of the file."""
        if not self._validation:
            raise SettingsError(
                "environment.options.validationTasks: there is no task to validate with. Keep some, or set "
                "training.validation.episodes to 0."
            )
        return self._task(number, self._validation[number % len(self._validation)])

    def reward(self, task: Task, answer: Answer) -> float:
        """What the function of `options.reward` says."""
        source = {"data_source": task.row["data_source"]} if "data_source" in task.row else {}
        return float(self._reward(answer, task.truth, {**source, **task.extra_info}))

    def _task(self, number: int, row: Mapping[str, Any]) -> Task:
        prompt = row[self.options.prompt_key]
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
        if self.options.system_prompt is not None:
            messages = [{"role": "system", "content": self.options.system_prompt}, *messages]
        model = row.get("reward_model") or {}
        return Task(
            number,
            messages,
            truth=model.get("ground_truth", row.get("ground_truth", row.get("answer"))),
            extra_info=row.get("extra_info") or {},
            use_tool=row.get("use_tool"),
            row=row,
        )


@dataclass(frozen=True, slots=True)
class DrawnRows:
    """Rows that seeds stand for: those of training, and those of validations, which may be the same."""

    training: list[dict[str, Any]]
    validation: list[dict[str, Any]]

    @classmethod
    def read(cls, path: str | None, validation_path: str | None, *, own: Path) -> "DrawnRows":
        """The rows of the files that options name, or of the one that comes along. Raises SettingsError."""
        if path is None and validation_path is not None:
            raise SettingsError(
                "environment.options.validationPath: goes with environment.options.path. Give both, or neither for a "
                "trial."
            )
        training = read_rows(own if path is None else Path(path), "path")
        return cls(
            training, training if validation_path is None else read_rows(Path(validation_path), "validationPath")
        )

    def draw(self, seed: int) -> dict[str, Any]:
        """The row that a seed stands for, the one that GRL draws from the same rows."""
        return random.Random(seed).choice(self.validation if seed < VALIDATION_SEEDS else self.training)

    def by_option(self) -> dict[str, list[dict[str, Any]]]:
        """The rows of each file, by the option that names it."""
        return {"path": self.training, "validationPath": self.validation}


def read_rows(path: Path, option: str) -> list[dict[str, Any]]:
    """The rows of a file; raises SettingsError for one that has none."""
    place = f"environment.options.{option}: {str(path)!r}"
    if not path.is_file():
        raise SettingsError(f"{place} is no file. Give the path of a .jsonl or .parquet file with one task a row.")
    if path.suffix == ".parquet":
        from pyarrow import parquet

        rows = parquet.read_table(path).to_pylist()
    elif path.suffix == ".jsonl":
        # Not `splitlines`: JSON lets other ends of lines, such as U+2028, stand in a text.
        lines = path.read_text(encoding="utf-8").split("\n")
        rows = [_row(line, f"{place}, line {n}") for n, line in enumerate(lines, start=1) if line.strip()]
    else:
        raise SettingsError(f"{place} is neither .jsonl nor .parquet. Convert it to one of them.")
    if not rows:
        raise SettingsError(f"{place} holds no task. Put one on every line.")
    return rows


def _row(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise SettingsError(f"{place} is no JSON: {error}. Write one object a line.") from error
