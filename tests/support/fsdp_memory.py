"""What a rank of FSDP2 holds at its peak, by torch's own tracker, on fake tensors and a fake process group.

python -m support.fsdp_memory MODEL_FOLDER TOKENS RANKS [critic]

Two micro-batches of forward and backward with gradient checkpointing, as verl's engine runs them: float32 shards,
bfloat16 computation, float32 reduction. Prints the bytes; Adam's moments, which torch's tracker counts wrongly, are not
among them.
"""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any


def measured_bytes(model: Path, *, tokens: int, ranks: int, is_critic: bool = False) -> int:
    """Measure in a process of its own: process groups are global."""
    arguments = [str(model), str(tokens), str(ranks), *(["critic"] if is_critic else [])]
    command = [sys.executable, "-m", "support.fsdp_memory", *arguments]
    ended = subprocess.run(
        command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False, timeout=600
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return int(ended.stdout.split()[-1])


def _measure(folder: Path, tokens: int, ranks: int, *, is_critic: bool) -> int:
    import torch
    from torch import distributed
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification
    from verl.utils.experimental.torch_functional import FusedLinearForPPO

    distributed.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    mesh = init_device_mesh("cpu", (ranks,))
    config: Any = AutoConfig.from_pretrained(folder)
    config.num_labels = 1
    kind = AutoModelForTokenClassification if is_critic else AutoModelForCausalLM
    with FakeTensorMode():
        model = kind.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train()
        sharding: dict[str, Any] = {
            "mesh": mesh,
            "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        }
        for layer in model.get_decoder().layers:
            fully_shard(layer, **sharding)
        fully_shard(model, **sharding)
        forward = model.forward

        def loss_of_policy(ids: Any, arguments: Any) -> Any:
            hidden = model.get_decoder()(input_ids=ids, **arguments).last_hidden_state
            log_probs, entropy = FusedLinearForPPO()(hidden, model.get_output_embeddings().weight, ids)
            return log_probs.sum() + entropy.sum()

        def loss_of_critic(ids: Any, arguments: Any) -> Any:
            return forward(input_ids=ids, **arguments).logits.float().sum()

        # FSDP gathers the parameters outside of layers when this is called.
        model.forward = loss_of_critic if is_critic else loss_of_policy
        tracker = FSDPMemTracker(model)
        tracker.track_inputs(())
        with tracker:
            arguments = {"position_ids": torch.arange(tokens)[None], "use_cache": False}
            for number in range(2):
                if number:
                    tracker.reset_mod_stats()
                model(torch.zeros(1, tokens, dtype=torch.long), arguments).backward()
        peak = tracker.get_tracker_snapshot("peak")
    return sum(int(of_device["Total"]) for of_device in peak.values())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(_measure(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), is_critic="critic" in sys.argv[4:]))
