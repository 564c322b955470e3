"""A model of transformers with the weights of a checkpoint, and adapters merged into it or apart from it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from turnmill.core.errors import SettingsError
from turnmill.training.verl.whole_weights import read_weights

LoraForm = Literal["merged", "adapter"]

_LORA_FACTS = "lora_train_meta.json"
_ADAPTED = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_A\.default\.weight")
_COPIES = "huggingface"
"""Folder of a checkpoint with configuration and tokenizer, which verl has saved."""


def files_beside_weights(actor: Path) -> Path:
    """Return the folder of a checkpoint with the model's configuration and its tokenizer."""
    return actor / _COPIES


def load_model(actor: Path, *, trust_remote_code: bool) -> PreTrainedModel:
    """Return the model of a checkpoint, on the CPU; one with adapters is a model of PEFT.

    Raises SettingsError if weights and configuration do not belong together.
    """
    weights = read_weights(actor)
    model = _empty_model(files_beside_weights(actor), trust_remote_code=trust_remote_code)
    if adapted := _adapted_modules(weights):
        model = _with_adapters(model, adapted, actor)
    unexpected = model.load_state_dict(weights, strict=False, assign=True).unexpected_keys
    # Tied weights, such as those of the output layer, need not be in the checkpoint.
    (model.get_base_model() if adapted else model).tie_weights()
    lacking = [name for name, weight in model.state_dict().items() if weight.is_meta]
    if adapted and all("lora_" in name for name in weights):
        lacking = [name for name in lacking if "lora_" in name]
    if lacking or unexpected:
        name, what = (lacking[0], "lacks") if lacking else (unexpected[0], "has")
        raise SettingsError(
            f"{actor} {what} {name}, unlike the model that its config.json describes, so the weights cannot be "
            "exported. Restore the checkpoint, or choose another with --step."
        )
    return model


def has_adapters(model: PreTrainedModel) -> bool:
    """Return whether the model was trained by adapters."""
    return hasattr(model, "peft_config")


def merge_adapters(model: PreTrainedModel, actor: Path) -> PreTrainedModel:
    """Return the model with its adapters added to its own weights, computed in float32.

    Raises SettingsError if the checkpoint has the adapters alone.
    """
    if any(weight.is_meta for weight in model.state_dict().values()):
        raise SettingsError(
            f"--lora merged: {actor} has the adapters alone, as checkpoint.save_lora_only in spec.verl asks, and they "
            "cannot be merged without the model. Use --lora adapter."
        )
    return model.float().merge_and_unload(safe_merge=True)


def loader_of(architecture: str) -> str:
    """Return the name of the class of transformers that loads models of an architecture."""
    is_vision = "ForConditionalGeneration" in architecture
    return "AutoModelForImageTextToText" if is_vision else "AutoModelForCausalLM"


def _empty_model(folder: Path, *, trust_remote_code: bool) -> PreTrainedModel:
    """Return a model without memory for its weights, of the class that the training used."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    loader = getattr(transformers, loader_of((config.architectures or [""])[0]))
    with torch.device("meta"):
        return loader.from_config(
            config, dtype=torch.float32, attn_implementation="eager", trust_remote_code=trust_remote_code
        )


def _adapted_modules(weights: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the modules that have an adapter."""
    return [match[1] for match in map(_ADAPTED.fullmatch, weights) if match]


def _with_adapters(model: PreTrainedModel, modules: list[str], actor: Path) -> PreTrainedModel:
    """Return the model with empty adapters on these modules, as the training has built them."""
    from peft import LoraConfig, get_peft_model

    try:
        facts = json.loads((actor / _LORA_FACTS).read_text())
        rank, alpha = int(facts["r"]), int(facts["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"{actor / _LORA_FACTS} does not tell rank and alpha of the adapters in this checkpoint ({error!r}): "
            "without them their scale is unknown. Restore the file, or choose another checkpoint with --step."
        ) from error
    with torch.device("meta"):
        return get_peft_model(
            model, LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=alpha, target_modules=modules)
        )
