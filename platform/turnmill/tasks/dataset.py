"""Tasks from a file, one per row."""

import json
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from turnmill.core.errors import SettingsError
from turnmill.core.seeds import VALIDATION_SEEDS
from turnmill.jobs.options import EnvironmentOptions
from turnmill.tasks import rewards
from turnmill.tasks.base import Answer, Task, TaskSource, stable_hash
from turnmill.tasks.judge import Judge, JudgeOptions

SCORED = "reward_model"
"""`reward` that is the score of the job's `rewardModel`."""

log = logging.getLogger(__name__)

Row = dict[str, Any]
"""One row of a data set, whose columns may hold anything."""


class DatasetOptions(EnvironmentOptions):
    """Files and columns of the tasks, and the reward of an answer."""

    path: str
    """File of tasks, `.jsonl` or `.parquet`."""

    validation_path: str | None = None
    """File of tasks for validations; if omitted, the last `validationTasks` of `path`, which training then skips."""

    validation_tasks: int = Field(default=128, ge=0)
    """Tasks of `path` that are reserved for validations."""

    prompt_key: str = "prompt"
    """Column of the prompt: a list of messages, or text, which becomes a user message."""

    system_prompt: str | None = None
    """System message before every prompt."""

    reward: str = "exact_match"
    """`exact_match`, `boxed_match`, `math_verify`, or `package.module:function` of a function of your own; `verl` is
    verl's reward for the row's `data_source`, and `verl:FILE:function` a function with verl's signature. `judge` asks
    a model for a verdict, and `reward_model` the job's `rewardModel` for a score."""

    judge: JudgeOptions | None = None
    """The judge, if `reward` is `judge`; left out, the job's `rewardModel` with the default prompt."""

    @model_validator(mode="after")
    def _check_judge(self) -> Self:
        if self.judge is not None and self.reward != "judge":
            raise ValueError("the section `judge` is for `reward: judge`: set both, or leave both out")
        return self


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
        self._judge = Judge(options.judge or JudgeOptions()) if options.reward == "judge" else None
        asks_model = options.reward in ("judge", SCORED)
        self._reward: Callable[..., float] | None = None if asks_model else rewards.find(options.reward)
        self._prediction = rewards.find_prediction(options.reward)

    @property
    def asks_reward_model(self) -> bool:
        """Whether `options.reward` is a judge without an address, or a score."""
        return self.options.reward == SCORED or (self._judge is not None and self._judge.options.url is None)

    def require_json(self) -> None:
        """Raise SettingsError for the first row whose `extra_info` is not JSON."""
        for row in (*self._training, *self._validation):
            try:
                json.dumps(row.get("extra_info"))
            except (TypeError, ValueError) as error:
                task = str(row[self.options.prompt_key])[:80]
                raise SettingsError(
                    f"environment.options.path: extra_info is sent with every tool call, and that of the task {task!r} "
                    f"is not valid JSON: {error}. Write dates and bytes as text."
                ) from error

    def keep(self, fits: Callable[[Task], bool]) -> None:
        """Drop the rows whose tasks do not fit. Raises SettingsError if none is left for training."""
        self._training, before = [row for row in self._training if fits(self._task(0, row))], len(self._training)
        self._validation = [row for row in self._validation if fits(self._task(0, row))]
        self._order = (-1, [])
        log.info("Tasks with overlong prompts dropped", extra={"dropped": before - len(self._training), "of": before})
        if not self._training:
            raise SettingsError(
                f"agent.filterOverlongPrompts: all prompts of {self.options.path} are too long. Raise "
                "agent.maxPromptLength."
            )

    def training(self, number: int) -> Task:
        """Return the n-th task; every epoch goes through all rows in another random order."""
        epoch, position = divmod(number, len(self._training))
        if self._order[0] != epoch:
            order = list(range(len(self._training)))
            random.Random(stable_hash(self.seed, "order", epoch)).shuffle(order)
            self._order = (epoch, order)
        return self._task(number, self._training[self._order[1][position]])

    def validation(self, number: int) -> Task:
        """Return the n-th validation row, in the order of the file."""
        if not self._validation:
            raise SettingsError(
                "environment.options.validationTasks: no task is left for validations. Reserve some, or set "
                "training.validation.episodes to 0."
            )
        return self._task(number, self._validation[number % len(self._validation)])

    def reward(self, task: Task, answer: Answer) -> float:
        """Return the result of the function `options.reward`."""
        if self._reward is None:
            raise TypeError("rewards of a model are awaited, by `score`")
        return float(self._reward(answer, task.truth, self._extra_info(task)))

    async def score(self, task: Task, answer: Answer) -> float:
        """Return the result of the function `options.reward`, or the model's."""
        if self._judge is not None:
            return await self._judge.reward(task, answer, self.reward_model)
        if self._reward is not None:
            return await super().score(task, answer)
        assert self.reward_model is not None
        # As verl asks its reward models: all that the policy wrote and observed is one message.
        return await self.reward_model.score([*task.messages, {"role": "assistant", "content": answer.whole}])

    def prediction(self, task: Task, answer: Answer) -> str | None:
        """Return the part of the answer that `options.reward` compares, or verl's `pred`."""
        return self._prediction(answer, task.truth, self._extra_info(task))

    def _extra_info(self, task: Task) -> dict[str, object]:
        source = {"data_source": task.row["data_source"]} if "data_source" in task.row else {}
        return {**source, **task.extra_info}

    def _task(self, number: int, row: Row) -> Task:
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
class SeededRows:
    """Rows that are selected by seed: one list for training and one for validations, which may be the same."""

    training: list[Row]
    validation: list[Row]

    @classmethod
    def read(cls, path: str | None, validation_path: str | None, *, sample: Path) -> "SeededRows":
        """Read the files of the options, or the built-in sample if there are none. Raises SettingsError."""
        if path is None and validation_path is not None:
            raise SettingsError(
                "environment.options.validationPath: must be set together with environment.options.path. Set both, or "
                "neither for a trial."
            )
        training = read_rows(sample if path is None else Path(path), "path")
        return cls(
            training, training if validation_path is None else read_rows(Path(validation_path), "validationPath")
        )

    def draw(self, seed: int) -> Row:
        """Return the row that a seed selects; GRL draws the same one from the same rows."""
        return random.Random(seed).choice(self.validation if seed < VALIDATION_SEEDS else self.training)

    def by_option(self) -> dict[str, list[Row]]:
        """Return the rows of each file, by the option that names it."""
        return {"path": self.training, "validationPath": self.validation}


def read_rows(path: Path, option: str) -> list[Row]:
    """Read a `.jsonl` or `.parquet` file, one dictionary per row; `option` is its option's name for messages.

    Raises SettingsError if the file is missing, malformed or empty.
    """
    return read_table(path, f"environment.options.{option}", "task")


def read_table(path: Path, place: str, row_is: str) -> list[Row]:
    """Read the rows of a file that the job names at `place`; `row_is` says in one word what a row is.

    Raises SettingsError if the file is missing, malformed or empty.
    """
    location = f"{place}: {str(path)!r}"
    if not path.is_file():
        raise SettingsError(
            f"{location} is not a file. Give the path of a .jsonl or .parquet file, one {row_is} per row."
        )
    rows: list[Row]
    if path.suffix == ".parquet":
        from pyarrow import parquet

        try:
            rows = parquet.read_table(path).to_pylist()
        except (OSError, ValueError) as error:
            # pyarrow's errors derive from them.
            raise SettingsError(f"{location} cannot be read as Parquet: {error}. Write the file again.") from error
    elif path.suffix == ".jsonl":
        # Not `splitlines`: it also splits at U+2028 and others, which may occur within JSON strings.
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{location} cannot be read: {error}. Save it as UTF-8.") from error
        rows = [_parse_row(line, f"{location}, line {n}") for n, line in enumerate(lines, start=1) if line.strip()]
    else:
        raise SettingsError(f"{location} is neither .jsonl nor .parquet. Convert it to one of them.")
    if not rows:
        raise SettingsError(f"{location} contains no {row_is}. Put one on every line.")
    return rows


def _parse_row(line: str, location: str) -> Row:
    try:
        row: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{location} is not valid JSON: {error}. Write one object per line.") from error
    if not isinstance(row, dict):
        raise SettingsError(f"{location} is not a JSON object. Write one object per line.")
    return row
