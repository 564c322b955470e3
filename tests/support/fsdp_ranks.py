"""verl's FSDP engines of a tiny model on several ranks of this machine, connected by gloo."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.spawn import spawn

VOCABULARY = 97
ROW_LENGTHS = (5, 17, 11, 9, 4, 21)
MAX_TOKENS = 500


def run_on_ranks(function: Callable[..., None], ranks: int, *arguments: object) -> None:
    """Run `function(rank, *arguments)` in as many processes; an exception in one of them is raised here."""
    os.environ |= {"VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1"}
    spawn(function, args=arguments, nprocs=ranks)  # type: ignore[no-untyped-call]


@contextmanager
def process_group(rank: int, ranks: int, file: Path) -> Iterator[None]:
    """Connect the first `ranks` processes by a file that does not exist yet."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("cpu:gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def save_model(folder: Path) -> None:
    """Save a Qwen2 model with two layers, and a tokenizer."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from turnmill.training.warm_start.tokenizer import build_tokenizer

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            tie_word_embeddings=True,
        )
    )
    model.save_pretrained(folder)
    build_tokenizer(["go to the ball"]).save_pretrained(folder)


def build_engine(
    kind: str, folder: Path, *, seed: int = 0, packed: bool = True, dtype: str = "fp32", **model: Any
) -> Any:
    """Build verl's engine `language_model` or `value_model` in the process group; its learning rate rises."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine.base import EngineRegistry

    from turnmill.training.verl import plugin, workers  # noqa: F401  (patches, and engines)

    torch.manual_seed(seed)
    engine = EngineRegistry.new(
        model_type=kind,
        backend="fsdp2",
        model_config=HFModelConfig(
            path=str(folder),
            use_remove_padding=packed,
            model_type=kind,
            override_config={"attn_implementation": "sdpa"},
            **model,
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2",
            forward_only=False,
            use_dynamic_bsz=True,
            use_remove_padding=packed,
            max_token_len_per_gpu=MAX_TOKENS,
            infer_max_token_len_per_gpu=MAX_TOKENS,
            use_torch_compile=False,
            dtype={"fp32": "float32", "bf16": "bfloat16"}[dtype],
            mixed_precision={"param_dtype": dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        ),
        optimizer_config=FSDPOptimizerConfig(lr=1e-3, lr_warmup_steps=8, total_training_steps=10),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


def train_step(engine: Any, kind: str, rank: int, ranks: int, *, packed: bool = True) -> None:
    """Make one update on the same rows whatever the number of ranks, of which each gets its share."""
    name = "values" if kind == "value_model" else "log_probs"
    lengths = ROW_LENGTHS[rank::ranks]
    # Among packed rows, the last token of a row has the next row's first as its label.
    has_label = torch.cat([torch.arange(length) < length - 1 for length in lengths])

    def loss(model_output: Any, data: Any, dp_group: object = None) -> tuple[Tensor, dict[str, float]]:
        values = model_output[name]
        values = values.values() if values.is_nested else values
        return (values.float()[has_label] ** 2).sum() / data["batch_num_tokens"] * data["dp_size"], {}

    with engine.train_mode():
        engine.optimizer_zero_grad()
        engine.forward_backward_batch(_batch(lengths, packed=packed), loss)
        engine.optimizer_step()
    engine.lr_scheduler_step()


def full_weights(engine: Any) -> dict[str, Tensor]:
    """Return the whole weights, on every rank."""
    weights = engine.module.state_dict()
    return {
        name: (weight.full_tensor() if hasattr(weight, "full_tensor") else weight).detach().clone()
        for name, weight in weights.items()
    }


def _batch(lengths: Sequence[int], *, packed: bool) -> Any:
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    # The tokens of a row depend on its length alone.
    rows = [torch.randint(3, VOCABULARY, (n,), generator=torch.Generator().manual_seed(n)) for n in lengths]

    def nested(tensors: list[Tensor]) -> Tensor:
        return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)

    data = TensorDict(
        {
            "input_ids": nested(rows),
            "position_ids": nested([torch.arange(len(row)) for row in rows]),
            "loss_mask": nested([torch.ones(len(row)) for row in rows]),
        },
        batch_size=[len(rows)],
    )
    tu.assign_non_tensor(
        data,
        temperature=1.0,
        use_remove_padding=packed,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=MAX_TOKENS,
        calculate_entropy=False,
        use_fused_kernels=False,
        pad_token_id=0,
        global_batch_size=len(ROW_LENGTHS),
        compute_loss=True,
        return_model_output=False,
    )
    return data
