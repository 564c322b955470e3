"""What verl takes for a data set of prompts: the slots in which environments run."""

from typing import Any

from torch.utils.data import Dataset

from turnmill.jobs import AgentTrainingJob


class EnvironmentSlots(Dataset):
    """One row per environment slot for training, one per episode for validation."""

    def __init__(
        self, data_files: Any, tokenizer: Any, config: Any, processor: Any = None, max_samples: int = -1, **_: Any
    ) -> None:
        self.num_rows = max(1, max_samples)

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"raw_prompt": [], "index": index, "slot": index, "agent_name": "turns"}


def slots_of(job: AgentTrainingJob) -> EnvironmentSlots:
    """The rows that one step goes through."""
    return EnvironmentSlots(None, None, None, max_samples=job.spec.environment.count)
