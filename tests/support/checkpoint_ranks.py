"""What ranks do in the tests of checkpoints; processes that are spawned import it from here."""

from pathlib import Path
from typing import Any

import torch

from support.fsdp_ranks import build_engine, full_weights, process_group, train_step


def resume_on_1_2_and_1_ranks(rank: int, folder: Path, kind: str, model: dict[str, Any]) -> None:
    """Train three steps on one rank; resume after the second on two ranks, and after their third on one."""
    expected: dict[int, dict[str, torch.Tensor]] = {}
    if rank == 0:
        with process_group(0, 1, folder / "first"):
            engine = build_engine(kind, folder, **model)
            for step in (1, 2, 3, 4):
                train_step(engine, kind, 0, 1)
                expected[step] = full_weights(engine)
                if step == 2:
                    engine.save_checkpoint(str(folder / "one"), global_step=2)

    with process_group(rank, 2, folder / "second"):
        torch.distributed.barrier()
        engine = build_engine(kind, folder, seed=1, **model)
        engine.load_checkpoint(str(folder / "one"))
        check(rank, engine, expected.get(2), tolerance=0)
        train_step(engine, kind, rank, 2)
        check(rank, engine, expected.get(3), tolerance=1e-5)
        engine.save_checkpoint(str(folder / "two"), global_step=3)
        saved = full_weights(engine)

    if rank == 0:
        with process_group(0, 1, folder / "third"):
            engine = build_engine(kind, folder, seed=2, **model)
            engine.load_checkpoint(str(folder / "two"))
            check(rank, engine, saved, tolerance=0)
            train_step(engine, kind, 0, 1)
            check(rank, engine, expected[4], tolerance=1e-5)


def check(rank: int, engine: Any, expected: dict[str, torch.Tensor] | None, *, tolerance: float) -> None:
    """Compare the weights on rank 0, which has the expected ones; all ranks gather them."""
    weights = full_weights(engine)
    if expected is not None:
        assert weights.keys() == expected.keys()
        for name, weight in weights.items():
            torch.testing.assert_close(weight, expected[name], rtol=0, atol=tolerance)


def load_what_verl_saved(rank: int, folder: Path) -> None:
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    with process_group(0, 1, folder / "group"):
        engine = build_engine("language_model", folder)
        train_step(engine, "language_model", 0, 1)
        FSDPCheckpointManager.save_checkpoint(engine.checkpoint_manager, str(folder / "verl"))
        assert (folder / "verl" / "model_world_size_1_rank_0.pt").exists()
        expected = full_weights(engine)
        train_step(engine, "language_model", 0, 1)
        engine.load_checkpoint(str(folder / "verl"))
        check(0, engine, expected, tolerance=0)
