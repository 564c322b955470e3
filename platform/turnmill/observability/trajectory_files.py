"""Names of the files of a run's trajectory log.

Every process that writes turns has one file per step, `step-000012.<writer>.jsonl`. Run folders of 0.1 have one file
per step for all writers, `step-000012.jsonl`, which are read, too. Files are read in the order of their steps, those of
a step by name.
"""

import zlib
from dataclasses import dataclass

from turnmill.observability.writer import writer_id

TRAINING = "step"
VALIDATION = "validation"

SUFFIX = ".jsonl"


@dataclass(frozen=True, slots=True, order=True)
class LogFile:
    """A file of the log; its order is that in which the files of one kind are read."""

    kind: str
    step: int
    name: str

    @classmethod
    def named(cls, name: str) -> "LogFile | None":
        """Return the file of a name in the log's folder; None if the name is not that of a file of the log."""
        kind, _, step = name.partition(".")[0].rpartition("-")
        if kind in (TRAINING, VALIDATION) and step.isdigit() and name.endswith(SUFFIX):
            return cls(kind, int(step), name)
        return None


def turns_file(kind: str, step: int) -> str:
    """Return the name of this process's own file with turns of a step, of kind `TRAINING` or `VALIDATION`."""
    return f"{kind}-{step:06d}.{writer_id()}{SUFFIX}"


def is_sampled(episode: str, share: float) -> bool:
    """Return True if an episode belongs to the sample: the same answer in every process, for all samples of a task."""
    # An episode of a task is named {step}-{task}-{sample}; one of a slot has no sample.
    task = "-".join(episode.split("-")[:2])
    return share >= 1 or zlib.crc32(task.encode()) < share * 2**32
