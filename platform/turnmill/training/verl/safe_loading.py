"""Loading of checkpoints without running code that somebody may have put into them.

Files of PyTorch contain pickles, which can call any function. Checkpoints lie in storage that many may write to.
"""

import io
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy._core.multiarray import _reconstruct
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem

_WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_METADATA = (
    "Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata",
    "BytesStorageMetadata", "_MEM_FORMAT_ENCODING",
)  # fmt: skip
_KNOWN = {
    *(("torch.distributed.checkpoint.metadata", name) for name in _METADATA),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("pathlib", "PosixPath"),
    # As Python calls it from 3.13.
    ("pathlib._local", "PosixPath"),
}
_RNG_STATE: list[Any] = [np.ndarray, np.dtype, _reconstruct, type(np.dtype(np.uint32))]
"""Classes in the random generators' states that verl saves."""


@contextmanager
def weights_only() -> Iterator[None]:
    """Make `torch.load` refuse everything but tensors and plain containers, whatever its caller asks for."""
    before = os.environ.get(_WEIGHTS_ONLY)
    os.environ[_WEIGHTS_ONLY] = "1"
    try:
        with torch.serialization.safe_globals(_RNG_STATE):
            yield
    finally:
        if before is None:
            del os.environ[_WEIGHTS_ONLY]
        else:
            os.environ[_WEIGHTS_ONLY] = before


class TensorReader(FileSystemReader):
    """Reads checkpoints of torch.distributed.checkpoint; of their pickled table of contents, only the known classes."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the table of contents. Raises pickle.UnpicklingError if it has other classes."""
        with Path(self._get_metadata_path(kwargs.get("rank"))).open("rb") as file:
            metadata: Metadata = _MetadataUnpickler(file).load()
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class TensorPlanner(DefaultLoadPlanner):
    """Plans loading of tensors, and refuses other objects."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Raise pickle.UnpicklingError."""
        raise pickle.UnpicklingError(f"{read_item.dest_index.fqn} is no tensor")


def _memory_format(kind: object, name: str) -> _MEM_FORMAT_ENCODING:
    if kind is not _MEM_FORMAT_ENCODING or name not in _MEM_FORMAT_ENCODING.__members__:
        raise pickle.UnpicklingError(f"a checkpoint's table of contents must not contain {kind}.{name}")
    return _MEM_FORMAT_ENCODING[name]


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            # Some releases of Python, such as 3.11.15, pickle members of an Enum by their name, others by their value.
            return _memory_format
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"a checkpoint's table of contents must not contain {module}.{name}")
        return super().find_class(module, name)
