"""What ranks do in the tests of exported models; processes that are spawned import it from here."""

from pathlib import Path
from typing import Any

import torch

from support.exported_runs import STEP
from support.fsdp_ranks import VOCABULARY, build_engine, process_group, train_step

LOGITS = "logits.pt"


def tokens() -> torch.Tensor:
    """Return the tokens whose logits are compared."""
    return torch.randint(3, VOCABULARY, (3, 19), generator=torch.Generator().manual_seed(5))


def train_and_save(rank: int, model: Path, actors: dict[str, Path], settings: dict[str, Any], ranks: int) -> None:
    """Train the model for two updates, save it in the formats that `actors` names, and its logits in its folder."""
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    with process_group(rank, ranks, model / "group"):
        engine = build_engine("language_model", model, **settings)
        for _ in range(STEP):
            train_step(engine, "language_model", rank, ranks)
        for form, actor in actors.items():
            manager = engine.checkpoint_manager
            if form == "turnmill":
                engine.save_checkpoint(str(actor), global_step=STEP)
            else:
                manager.checkpoint_config = {"save_lora_only": form == "adapters alone"}
                FSDPCheckpointManager.save_checkpoint(manager, str(actor))
                manager.checkpoint_config = None
        engine.module.eval()
        with torch.no_grad():
            logits = engine.module(input_ids=tokens()).logits
        if rank == 0:
            torch.save(logits.float(), model / LOGITS)
