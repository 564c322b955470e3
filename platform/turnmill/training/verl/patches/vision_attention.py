"""Attention of Qwen2-VL and Qwen2.5-VL over packed rows without the package flash-attn."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from turnmill.training.verl.patches import Patch, replace_once

if TYPE_CHECKING:
    from torch import Tensor

PATCH = Patch(
    target="verl.models.transformers.qwen2_vl.qwen2_vl_attn_forward",
    change="Qwen2-VL and Qwen2.5-VL attend as configured",
    reason="verl calls flash attention for packed rows whatever the configuration says",
    distribution="verl",
    version="0.9.1",
    source="https://github.com/verl-project/verl/blob/v0.9.1/verl/models/transformers/qwen2_vl.py#L322",
    quote="attn_output = _custom_flash_attention_forward(",
)

Attend = Callable[..., "tuple[Tensor, ...]"]


def apply() -> None:
    """Apply the patch in this process, before verl patches the models; further calls have no effect."""
    import verl.models.transformers.qwen2_vl as qwen2_vl

    replace_once(qwen2_vl, "qwen2_vl_attn_forward", _as_configured)


def _as_configured(flash_attention: Attend) -> Attend:
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLAttention
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLAttention

    own: dict[type, Attend] = {kind: kind.forward for kind in (Qwen2VLAttention, Qwen2_5_VLAttention)}

    def attend(layer: Any, *args: object, **kwargs: object) -> "tuple[Tensor, ...]":
        is_flash = layer.config._attn_implementation.startswith("flash_attention")
        return (flash_attention if is_flash else own[type(layer)])(layer, *args, **kwargs)

    return attend
