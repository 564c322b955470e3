"""Micro-batches without pictures, for models of Qwen2-VL's and Qwen2.5-VL's architecture."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from turnmill.training.verl.patches import Patch, replace_once

if TYPE_CHECKING:
    from torch import Tensor

PATCH = Patch(
    target="verl.models.transformers.qwen2_vl._get_input_embeds",
    change="Qwen2-VL and Qwen2.5-VL compute micro-batches without pictures",
    reason="verl takes the mean of what the vision tower returns, which is a tensor no longer since transformers 5",
    distribution="verl",
    version="0.9.1",
    source="https://github.com/verl-project/verl/blob/v0.9.1/verl/models/transformers/qwen2_vl.py#L393",
    quote="image_embeds = model.visual(pixel_values, grid_thw=image_grid_thw)",
)

MODEL_TYPES = ("qwen2_vl", "qwen2_5_vl")
"""Types of models whose forward verl replaces by the patched one."""

Embed = Callable[..., "tuple[Tensor, Tensor | None]"]


def apply() -> None:
    """Apply the patch in this process; further calls have no effect."""
    import verl.models.transformers.qwen2_vl as qwen2_vl

    replace_once(qwen2_vl, "_get_input_embeds", _embedding_text_alone)


def _embedding_text_alone(original: Embed) -> Embed:
    def embed(
        model: Any, input_ids: "Tensor", attention_mask: "Tensor | None" = None, *images: "Tensor | None"
    ) -> "tuple[Tensor, Tensor | None]":
        if any(image is not None for image in images):
            return original(model, input_ids, attention_mask, *images)
        embeddings = model.get_input_embeddings()(input_ids)
        # A part of the graph without effect, as every rank must use all weights.
        seen = model.visual(*_empty_image(model, embeddings)).pooler_output
        return embeddings + 0.0 * seen.mean(), attention_mask

    return embed


def _empty_image(model: Any, embeddings: "Tensor") -> "tuple[Tensor, Tensor]":
    """Return an image of zeros that becomes one token, and its sizes."""
    vision = model.config.vision_config
    side = vision.spatial_merge_size
    pixels = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    return embeddings.new_zeros(side**2, pixels), embeddings.new_tensor([[1, side, side]]).long()
