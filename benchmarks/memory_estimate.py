"""The estimate of `turnmill check --explain` beside torch's own tracker, on fake tensors; minutes, and no GPU.

OMP_NUM_THREADS=1 PYTHONPATH=tests .venv/bin/python benchmarks/memory_estimate.py
"""

import tempfile
from pathlib import Path

from omegaconf import OmegaConf
from runs import table
from transformers import LlamaConfig, PretrainedConfig, Qwen2Config

from support.fsdp_memory import measured_bytes
from turnmill.sizing.memory import GIB, Trained
from turnmill.sizing.model import Model

TOKENS = 16_384
RANKS = (2, 8)
# Sizes from the config.json of each model.
MODELS: dict[str, PretrainedConfig] = {
    "Qwen2.5-3B": Qwen2Config(
        hidden_size=2048, intermediate_size=11008, num_hidden_layers=36, num_attention_heads=16, num_key_value_heads=2,
        vocab_size=151936, tie_word_embeddings=True,
    ),
    "Qwen2.5-7B": Qwen2Config(
        hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
        vocab_size=152064, tie_word_embeddings=False,
    ),
    "Llama-3.1-8B": LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        vocab_size=128256, tie_word_embeddings=False,
    ),
}  # fmt: skip
FSDP = OmegaConf.create({"param_offload": False, "optimizer_offload": False})


def main() -> None:
    """Print a row per model, role and number of ranks."""
    rows = []
    for name, config in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            config.save_pretrained(folder)
            model = Model(Path(folder))
            for is_critic in (False, True):
                activations = model.activation_bytes(TOKENS, is_critic=is_critic)
                for ranks in RANKS:
                    trained = Trained("", model.parameters(is_critic=is_critic), activations, FSDP, ranks)
                    parts = [*trained.resident(), *trained.learning()]
                    estimated = sum(part.gib for part in parts if "Adam" not in part.name)
                    measured = measured_bytes(Path(folder), tokens=TOKENS, ranks=ranks, is_critic=is_critic) / GIB
                    rows.append(
                        (name, "critic" if is_critic else "policy", ranks, f"{estimated:.1f}", f"{measured:.1f}",
                         f"{estimated / measured - 1:+.1%}")
                    )  # fmt: skip
    print(table(("model", "role", "ranks", "estimate, GiB", "tracked, GiB", "difference"), rows))


if __name__ == "__main__":
    main()
