"""Checkpoints of FSDP engines that load on any number of ranks.

verl's own have one file per rank, which only the same number of ranks can load. Here weights and optimizer state are
saved by torch.distributed.checkpoint (DCP), which reads what each rank needs from the files of all. Configuration and
tokenizer are saved by verl.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

from turnmill.training.verl.safe_loading import TensorPlanner, TensorReader, weights_only
from turnmill.training.verl.whole_weights import STATE

log = logging.getLogger(__name__)

SCHEDULER = "scheduler.json"


class DistributedCheckpoints(FSDPCheckpointManager):
    """Saves by DCP, and loads what DCP or verl has saved.

    Adapters alone (`checkpoint.save_lora_only`) stay in verl's format.
    """

    checkpoint_save_contents: list[str]

    @classmethod
    def replacing(cls, manager: FSDPCheckpointManager) -> "DistributedCheckpoints":
        """Return a manager of the same model, optimizer and contents."""
        return cls(
            model=manager.model,
            optimizer=manager.optimizer,
            lr_scheduler=manager.lr_scheduler,
            processing_class=manager.processing_class,
            checkpoint_config=manager.checkpoint_config,
            trust_remote_code=manager.trust_remote_code,
        )

    def save_checkpoint(
        self,
        local_path: str | None,
        hdfs_path: str | None = None,
        global_step: int = 0,
        max_ckpt_to_keep: int | None = None,
    ) -> None:
        """Save the contents that the configuration names in `local_path`; called by all ranks."""
        if local_path is None or self.should_save_lora_only:
            super().save_checkpoint(local_path, hdfs_path, global_step, max_ckpt_to_keep)
            return
        contents = self.checkpoint_save_contents
        state = self._state(model="model" in contents, optimizer="optimizer" in contents)
        try:
            # verl saves what is left: configuration, tokenizer and, on demand, the model in Hugging Face's format.
            self.checkpoint_save_contents = [name for name in contents if name == "hf_model"]
            super().save_checkpoint(local_path, hdfs_path, global_step, max_ckpt_to_keep)
        finally:
            self.checkpoint_save_contents = contents
        folder = Path(local_path, STATE)
        with plain_errors():
            state_dict_saver.save(state, checkpoint_id=folder)
        if "extra" in contents:
            torch.save(_portable(self.get_rng_state()), folder / self._rng_file)
            if self.rank == 0 and self.lr_scheduler is not None:
                (folder / SCHEDULER).write_text(json.dumps(self.lr_scheduler.state_dict()))
        torch.distributed.barrier()

    def load_checkpoint(
        self, local_path: str | None, hdfs_path: str | None = None, del_local_after_load: bool = False
    ) -> None:
        """Load a checkpoint that this number of ranks or another has saved; called by all ranks.

        Raises pickle.UnpicklingError if it contains anything but tensors and plain containers.
        """
        with weights_only():
            if local_path is None or not Path(local_path, STATE).exists():
                super().load_checkpoint(local_path, hdfs_path, del_local_after_load)
            else:
                self._load(Path(local_path, STATE))

    def _load(self, folder: Path) -> None:
        options = StateDictOptions(strict=True)
        state = self._state(model=self.should_load_model, optimizer=self.should_load_optimizer)
        with plain_errors():
            state_dict_loader.load(state, storage_reader=TensorReader(folder), planner=TensorPlanner())
        if self.should_load_model:
            set_model_state_dict(self.model, state["model"], options=options)
        if self.should_load_optimizer:
            optimizer_state = get_optimizer_state_dict(self.model, self.optimizer) | {"state": state["optimizer"]}
            set_optimizer_state_dict(self.model, self.optimizer, optimizer_state, options=options)
        if self.should_load_extra:
            self._load_extra(folder)
        torch.distributed.barrier()

    def _state(self, *, model: bool, optimizer: bool) -> dict[str, Any]:
        """Return the tensors to save or to load into, each sharded as in the model.

        The optimizer's hyperparameters are not among them: they come from the job, and the learning rate from the
        scheduler.
        """
        state: dict[str, Any] = {}
        if model:
            state["model"] = get_model_state_dict(self.model)
        if optimizer:
            state["optimizer"] = get_optimizer_state_dict(self.model, self.optimizer)["state"]
        return state

    def _load_extra(self, folder: Path) -> None:
        if self.lr_scheduler is not None and (folder / SCHEDULER).exists():
            self.lr_scheduler.load_state_dict(json.loads((folder / SCHEDULER).read_text()))
            for group, rate in zip(self.optimizer.param_groups, self.lr_scheduler.get_last_lr(), strict=True):
                group["lr"] = rate
        if (folder / self._rng_file).exists():
            self.load_rng_state(_restored(torch.load(folder / self._rng_file, weights_only=True)))
        else:
            log.warning(
                "The checkpoint was saved by another number of ranks: random generators start from their seeds",
                extra={"checkpoint": str(folder), "ranks": self.world_size},
            )

    @property
    def _rng_file(self) -> str:
        return f"rng_{self.rank}_of_{self.world_size}.pt"


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise the first failed rank's error instead of DCP's, which is no `Exception` and would end the worker."""
    try:
        yield
    except CheckpointException as error:
        (first, _), *_ = error.failures.values()
        raise first from error


def _portable(rng_state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of random generators in types that `torch.load` reads without unpickling objects."""
    name, keys, *rest = rng_state["numpy"]
    return rng_state | {"numpy": (name, torch.from_numpy(keys.astype(np.int64)), *rest)}


def _restored(rng_state: dict[str, Any]) -> dict[str, Any]:
    name, keys, *rest = rng_state["numpy"]
    return rng_state | {"numpy": (name, keys.numpy().astype(np.uint32), *rest)}
