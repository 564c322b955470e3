"""What ranks do in the tests of exported weights; processes that are spawned import it from here."""

import os
from pathlib import Path

import torch

from support.fsdp_ranks import build_engine, full_weights, process_group, train_step
from turnmill.observability.run_folder import VARIABLE, RunFolder


def export(rank: int, folder: Path, ranks: int, dtype: str) -> None:
    """Export the weights after an update, and compare them with those that the optimizer has updated.

    The update beats, too: that of a large model may take longer than a run may stall.
    """
    with process_group(rank, ranks, folder / "group"):
        run = RunFolder(folder / f"run-{rank}")
        run.path.mkdir()
        os.environ[VARIABLE] = str(run.path)
        engine = build_engine("language_model", folder, dtype=dtype)
        assert run.last_beat() is None
        train_step(engine, "language_model", rank, ranks)
        assert run.last_beat() is not None
        updated = full_weights(engine)

        weights, adapters = engine.get_per_tensor_param()

        exported = dict(weights)
        computed = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
        assert adapters is None
        assert exported.keys() >= updated.keys() - {"lm_head.weight"}
        assert {weight.dtype for weight in updated.values()} == {torch.float32}
        assert {weight.dtype for weight in exported.values()} == {computed}
        for name, weight in exported.items():
            assert torch.equal(weight, updated[name].to(computed)), name
