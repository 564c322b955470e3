"""Training workers of a fine-tuning that train nothing, in the trainer's process."""

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tensordict import TensorDict
from verl.utils import tensordict_utils as tu


class IdleWorkers:
    """Stands for verl's group of workers: keeps the batches that it is given, and answers with given losses."""

    resource_pool = SimpleNamespace(pgs=())

    def __init__(self, *, number: int = 1, validation_losses: Iterable[float] = ()) -> None:
        self.trained: list[TensorDict] = []
        self.validated: list[TensorDict] = []
        self.loaded: list[str] = []
        self._number = number
        self._validation_losses = iter(validation_losses)

    def train_batch(self, batch: TensorDict) -> Any:
        """Answer with the number of the batch as its loss."""
        self.trained.append(batch)
        return self._answer(len(self.trained))

    def infer_batch(self, batch: TensorDict) -> Any:
        """Answer with the next of the losses."""
        self.validated.append(batch)
        return self._answer(next(self._validation_losses))

    def save_checkpoint(self, *, local_path: str, global_step: int) -> None:
        """Write the step into the folder."""
        Path(local_path).mkdir(parents=True)
        (Path(local_path) / "step").write_text(str(global_step))

    def load_checkpoint(self, *, local_path: str) -> None:
        """Read the step that was written."""
        self.loaded.append((Path(local_path) / "step").read_text())

    def _query_dispatch_info(self, mesh: str) -> list[int]:
        return list(range(self._number))

    def _answer(self, loss: float) -> Any:
        output = tu.get_tensordict({}, {"metrics": {"loss": loss}})
        return SimpleNamespace(get=lambda: output)
