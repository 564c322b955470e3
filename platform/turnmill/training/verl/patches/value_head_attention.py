"""Critics with the configured attention implementation."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from turnmill.training.verl.patches import Patch, replace_once

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

PATCH = Patch(
    target="verl.utils.model.load_valuehead_model",
    change="critics load with the attention that is configured",
    reason="verl loads them with `flash_attention_2` whatever the configuration says",
    distribution="verl",
    version="0.9.1",
    source="https://github.com/verl-project/verl/blob/v0.9.1/verl/utils/model.py#L649",
    quote='attn_implementation="flash_attention_2",',
    issue="https://github.com/verl-project/verl/issues/5210",
)

Load = Callable[[str, "torch.dtype", "PretrainedConfig", bool], "PreTrainedModel"]


def apply() -> None:
    """Apply the patch in this process; further calls have no effect."""
    import verl.utils.model as model

    def with_configured_attention(_: Load) -> Load:
        return _load_valuehead_model

    replace_once(model, "load_valuehead_model", with_configured_attention)


def _load_valuehead_model(
    local_path: str, torch_dtype: "torch.dtype", model_config: "PretrainedConfig", trust_remote_code: bool
) -> "PreTrainedModel":
    from transformers import AutoModelForTokenClassification

    model: PreTrainedModel = AutoModelForTokenClassification.from_pretrained(
        local_path,
        dtype=torch_dtype,
        config=model_config,
        attn_implementation=getattr(model_config, "_attn_implementation", None) or "sdpa",
        trust_remote_code=trust_remote_code,
    )
    return model
