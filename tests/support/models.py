"""Model folders without weights."""

from pathlib import Path

from transformers import Qwen2Config

from turnmill.training.warm_start.tokenizer import build_tokenizer


def model_without_weights(folder: Path) -> Path:
    """Write a configuration and a tokenizer into a folder, and return it."""
    sizes = {"vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = Qwen2Config(**sizes, max_position_embeddings=2**17)
    config.architectures = ["Qwen2ForCausalLM"]
    config.save_pretrained(folder)
    build_tokenizer(["go to the ball"]).save_pretrained(folder)
    return folder
