"""Identity of an episode within a run."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EpisodeId:
    """Step, task and sample of an episode; the same in every attempt at a run."""

    step: int
    task: int
    sample: int
    validate: bool

    def __str__(self) -> str:
        return f"{'v' if self.validate else 't'}{self.step}-{self.task}-{self.sample}"

    @property
    def sampling_stream(self) -> str:
        """Name from which its sampling seeds are derived; it is the same in every validation."""
        return f"v-{self.task}-{self.sample}" if self.validate else str(self)
