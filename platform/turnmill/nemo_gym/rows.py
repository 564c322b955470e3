"""Tasks from a data file of NeMo Gym."""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from turnmill.core.errors import SettingsError
from turnmill.jobs.options import EnvironmentOptions
from turnmill.tasks.base import Answer, Message, Task, TaskSource, stable_hash
from turnmill.tasks.dataset import Row, read_rows

PARAMS = "responses_create_params"


class RowsOptions(EnvironmentOptions):
    """A data file, and the resources server that plays and verifies its rows."""

    path: str
    """File of rows, `.jsonl`, as NeMo Gym has it: each with `responses_create_params`."""

    url: Annotated[str, Field(max_length=1024, pattern=r"^https?://[^\s/]+\S*$")]
    """Address of the resources server."""

    validation_path: str | None = None
    """File of rows for validations; if omitted, the last `validationTasks` of `path`, which training then skips."""

    validation_tasks: int = Field(default=128, ge=0)
    """Rows of `path` that are reserved for validations."""

    max_steps: int | None = Field(default=None, ge=1)
    """NeMo Gym's `max_steps` of an agent: answers of the policy in one row. Left out, `agent.maxTurns`, and 10 at most
    for `gymnasium_agent`."""

    timeout_seconds: float = Field(default=300, gt=0, le=86_400)
    """Seconds that the resources server may take for an answer."""


class Rows(TaskSource):
    """NeMo Gym's rows: a conversation to continue, tools, and what the resources server needs to verify the end."""

    name = "nemo_gym"
    Settings = RowsOptions
    rewarded_by_program: ClassVar[bool] = True
    """The resources server gives the reward, and the agent's program has it."""

    def __init__(self, options: RowsOptions, seed: int) -> None:
        super().__init__(options, seed)
        rows = _read(options.path, "path")
        if options.validation_path is not None:
            self._validation = _read(options.validation_path, "validationPath")
        else:
            kept = min(options.validation_tasks, len(rows) - 1)
            rows, self._validation = rows[: len(rows) - kept], rows[len(rows) - kept :]
        self._training = rows
        self._order: tuple[int, list[int]] = (-1, [])

    @property
    def asks_reward_model(self) -> bool:
        """False: the resources server gives the reward."""
        return False

    def keep(self, fits: Callable[[Task], bool]) -> None:
        """Drop the rows that do not fit. Raises SettingsError if none is left for training."""
        self._training = [row for row in self._training if fits(self._task(0, row))]
        self._validation = [row for row in self._validation if fits(self._task(0, row))]
        self._order = (-1, [])
        if not self._training:
            raise SettingsError(f"environment.options.path: no row of {self.options.path} fits into the context.")

    def training(self, number: int) -> Task:
        """Return the n-th task; every epoch goes through all rows in another random order."""
        epoch, position = divmod(number, len(self._training))
        if self._order[0] != epoch:
            order = list(range(len(self._training)))
            random.Random(stable_hash(self.seed, "order", epoch)).shuffle(order)
            self._order = (epoch, order)
        return self._task(number, self._training[self._order[1][position]])

    def validation(self, number: int) -> Task:
        """Return the n-th row for validations, in the order of the file."""
        if not self._validation:
            raise SettingsError(
                "environment.options.validationTasks: no row is left for validations. Reserve some, or set "
                "training.validation.episodes to 0."
            )
        return self._task(number, self._validation[number % len(self._validation)])

    def reward(self, task: Task, answer: Answer) -> float:
        """Raise SettingsError: the resources server gives the reward."""
        raise SettingsError(
            "agent.reward must be program, as the resources server verifies the rows. Set it, and agent.entryPoint to "
            "turnmill.nemo_gym:simple_agent."
        )

    def _task(self, number: int, row: Row) -> Task:
        options = self.options
        info = {
            "row": row,
            "url": options.url,
            "maxSteps": options.max_steps,
            "timeoutSeconds": options.timeout_seconds,
        }
        return Task(number, _messages(row[PARAMS]), extra_info=info, row=row)


def _read(path: str, option: str) -> list[Row]:
    """Return the rows of a file. Raises SettingsError for one that is not NeMo Gym's."""
    rows = read_rows(Path(path), option)
    for number, row in enumerate(rows, start=1):
        given = row.get(PARAMS)
        items = given.get("input") if isinstance(given, dict) else None
        if not isinstance(items, str) and not (isinstance(items, list) and all(isinstance(i, dict) for i in items)):
            raise SettingsError(
                f"environment.options.{option}: {path!r}, row {number} has no {PARAMS}.input, a text or a list of "
                "items. Give a data file of NeMo Gym, in which prompts are filled in, as ng_prepare_data writes it."
            )
    return rows


def _messages(params: Mapping[str, object]) -> list[Message]:
    """Return the texts of a conversation, by which it is shown and measured."""
    items = params["input"]
    if not isinstance(items, list):
        return [{"role": "user", "content": str(items)}]
    return [{"role": str(item["role"]), "content": _text(item.get("content"))} for item in items if item.get("role")]


def _text(content: object) -> str:
    if not isinstance(content, list):
        return str(content or "")
    return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
