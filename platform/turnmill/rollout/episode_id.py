"""Identity of an episode within a run."""

import re
from dataclasses import dataclass
from typing import Self

_NAME = re.compile(r"([tv])(\d+)-(\d+)-(\d+)")


@dataclass(frozen=True, slots=True)
class EpisodeId:
    """Step, task and sample of an episode; the same in every attempt at a run."""

    step: int
    task: int
    sample: int
    validate: bool

    def __str__(self) -> str:
        return f"{'v' if self.validate else 't'}{self.step}-{self.task}-{self.sample}"

    @classmethod
    def from_name(cls, name: str) -> Self | None:
        """Return the id of an episode with a name; None if it is not one of an episode."""
        if (found := _NAME.fullmatch(name)) is None:
            return None
        step, task, sample = map(int, found.groups()[1:])
        return cls(step, task, sample, validate=found[1] == "v")

    @property
    def sampling_stream(self) -> str:
        """Name from which its sampling seeds are derived; it is the same in every validation."""
        return f"v-{self.task}-{self.sample}" if self.validate else str(self)
