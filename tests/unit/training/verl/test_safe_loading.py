"""Checkpoints that would run code when they are loaded; the code only makes a folder."""

import os
import pickle
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader, load, save
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata

from turnmill.training.verl.distributed_checkpoints import plain_errors
from turnmill.training.verl.safe_loading import TensorPlanner, TensorReader, weights_only


class Code:
    """Runs when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    state = {"model": {"weight": torch.arange(4.0), "half": torch.ones(2, dtype=torch.bfloat16)}}
    save(state, checkpoint_id=tmp_path / "state", no_dist=True)
    return tmp_path / "state"


def empty() -> dict[str, Any]:
    return {"model": {"weight": torch.zeros(4), "half": torch.zeros(2, dtype=torch.bfloat16)}}


def test_tensors_are_loaded(checkpoint: Path):
    state = empty()

    load(state, storage_reader=TensorReader(checkpoint), planner=TensorPlanner(), no_dist=True)

    assert state["model"]["weight"].tolist() == [0, 1, 2, 3]
    assert state["model"]["half"].tolist() == [1, 1]


def by_name(member: Enum, protocol: int) -> tuple[Any, ...]:
    """Pickle a member of an Enum as Python 3.11.15 does."""
    return getattr, (type(member), member.name)


def test_a_checkpoint_of_another_release_of_python_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_MEM_FORMAT_ENCODING, "__reduce_ex__", by_name)
    save({"model": {"weight": torch.arange(4.0)}}, checkpoint_id=tmp_path / "state", no_dist=True)
    assert b"getattr" in (tmp_path / "state" / ".metadata").read_bytes()
    state = {"model": {"weight": torch.zeros(4)}}

    load(state, storage_reader=TensorReader(tmp_path / "state"), planner=TensorPlanner(), no_dist=True)

    assert state["model"]["weight"].tolist() == [0, 1, 2, 3]


class Attribute:
    """Is unpickled as an attribute of what a table of contents may contain."""

    def __init__(self, owner: object, name: str) -> None:
        self.owner = owner
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.owner, self.name)


@pytest.mark.parametrize(
    "attribute",
    [
        Attribute(Metadata, "__init__"),
        Attribute(_MEM_FORMAT_ENCODING, "__class__"),
        Attribute(Attribute(_MEM_FORMAT_ENCODING, "TORCH_CONTIGUOUS_FORMAT"), "__class__"),
    ],
)
def test_attributes_are_no_way_from_the_table_of_contents_to_other_code(checkpoint: Path, attribute: Attribute):
    (checkpoint / ".metadata").write_bytes(pickle.dumps(attribute))

    with pytest.raises(AssertionError, match=r"must not contain"), plain_errors():
        load(empty(), storage_reader=TensorReader(checkpoint), planner=TensorPlanner(), no_dist=True)


def test_code_in_the_table_of_contents_is_not_run(checkpoint: Path, tmp_path: Path):
    (checkpoint / ".metadata").write_bytes(pickle.dumps(Code(tmp_path / "ran")))

    with pytest.raises(AssertionError, match=r"must not contain posix\.mkdir"), plain_errors():
        load(empty(), storage_reader=TensorReader(checkpoint), planner=TensorPlanner(), no_dist=True)

    assert not (tmp_path / "ran").exists()
    # PyTorch's own reader runs it.
    with pytest.raises(AssertionError, match="NoneType"), plain_errors():
        load(empty(), storage_reader=FileSystemReader(checkpoint), no_dist=True)
    assert (tmp_path / "ran").exists()


def test_code_in_the_place_of_a_tensor_is_not_run(tmp_path: Path):
    save({"model": {"weight": Code(tmp_path / "ran")}}, checkpoint_id=tmp_path / "state", no_dist=True)
    state = {"model": {"weight": torch.zeros(4)}}

    with pytest.raises(pickle.UnpicklingError, match=r"model\.weight is no tensor"), plain_errors():
        load(state, storage_reader=TensorReader(tmp_path / "state"), planner=TensorPlanner(), no_dist=True)

    assert not (tmp_path / "ran").exists()


def test_torch_load_refuses_objects_although_its_caller_allows_them(tmp_path: Path):
    torch.save({"state": Code(tmp_path / "ran")}, tmp_path / "data.pt")
    torch.save({"tensor": torch.ones(1), "number": 1, "list": [None, "text"]}, tmp_path / "plain.pt")

    with weights_only():
        assert torch.load(tmp_path / "plain.pt", weights_only=False)["number"] == 1
        with pytest.raises(pickle.UnpicklingError):
            torch.load(tmp_path / "data.pt", weights_only=False)

    assert not (tmp_path / "ran").exists()
    torch.load(tmp_path / "data.pt", weights_only=False)
    assert (tmp_path / "ran").exists()
