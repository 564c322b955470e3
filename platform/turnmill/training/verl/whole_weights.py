"""The whole weights in an FSDP engine's checkpoint, which any number of ranks may have saved.

Nothing here needs a process group, or as many processes as have saved the checkpoint.
"""

import re
import warnings
from collections import defaultdict
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor, Replicate, Shard

from turnmill.training.verl.safe_loading import TensorPlanner, TensorReader, weights_only

STATE = "state"
"""Folder of torch.distributed.checkpoint in a checkpoint."""

_MODEL = "model."
_RANK_FILE = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


def holds_weights(folder: Path) -> bool:
    """Return whether an FSDP engine has saved a model in this folder."""
    return (folder / STATE / ".metadata").is_file() or bool(_rank_files(folder))


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights of a model by their names, each whole and in the type in which it was trained.

    Raises pickle.UnpicklingError if the checkpoint contains anything but tensors, and ValueError if ranks are missing.
    """
    if (folder / STATE / ".metadata").is_file():
        return _read_distributed(folder / STATE)
    return _read_rank_files(folder)


def _read_distributed(folder: Path) -> dict[str, Tensor]:
    """Return the weights that `DistributedCheckpoints` has saved."""
    contents = TensorReader(folder).read_metadata().state_dict_metadata
    state: dict[str, Tensor] = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in contents.items()
        if name.startswith(_MODEL) and isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        # That there is no process group, as intended.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        state_dict_loader.load(state, storage_reader=TensorReader(folder), planner=TensorPlanner(), no_dist=True)
    return {name.removeprefix(_MODEL): weight for name, weight in state.items()}


def _read_rank_files(folder: Path) -> dict[str, Tensor]:
    """Return the weights that verl has saved, in one file per rank."""
    files = _rank_files(folder)
    num_ranks = next(iter(files))[0]
    if missing := [rank for rank in range(num_ranks) if (num_ranks, rank) not in files]:
        raise ValueError(f"the weights of rank {missing[0]} of {num_ranks} are missing")
    parts: defaultdict[str, list[Tensor]] = defaultdict(list)
    with weights_only():
        for rank in range(num_ranks):
            for name, part in torch.load(files[num_ranks, rank], map_location="cpu").items():
                parts[name].append(part)
    return {name: _join(found) for name, found in parts.items()}


def _rank_files(folder: Path) -> dict[tuple[int, int], Path]:
    """Return the files by number of ranks and rank."""
    matches = ((_RANK_FILE.fullmatch(path.name), path) for path in sorted(folder.glob("model_world_size_*.pt")))
    return {(int(match[1]), int(match[2])): path for match, path in matches if match}


def _join(parts: list[Tensor]) -> Tensor:
    """Join the parts of a tensor, one per rank.

    With several copies of the model, the last dimension of the mesh is that of the shards, and the first ranks have one
    copy.
    """
    first = parts[0]
    if not isinstance(first, DTensor):
        tensor: Tensor = first
        return tensor
    placement = first.placements[-1]
    if isinstance(placement, Replicate):
        return first.to_local()
    if type(placement) is not Shard:
        raise ValueError(f"weights are sharded in a way that cannot be joined: {placement}")
    shards = [part.to_local() for part in parts[: first.device_mesh.size(-1)] if isinstance(part, DTensor)]
    return torch.cat(shards, dim=placement.dim)
