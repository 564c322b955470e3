"""Positions of several dimensions (M-RoPE) where all rows of a batch have the same length, or there is one row."""

from typing import TYPE_CHECKING

from turnmill.training.verl.patches import Patch, replace_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict import TensorDict

PATCH = Patch(
    target="verl.utils.tensordict_utils.maybe_fix_3d_position_ids",
    change="rows of one length keep their positions of several dimensions",
    reason="torch takes the first dimension of such rows for the ragged one, and verl then names the second",
    distribution="verl",
    version="0.9.1",
    source="https://github.com/verl-project/verl/blob/v0.9.1/verl/utils/tensordict_utils.py#L915",
    quote='data["position_ids"]._ragged_idx = 2',
)


def apply() -> None:
    """Apply the patch in this process; further calls have no effect."""
    import verl.workers.engine.base as engine
    import verl.workers.engine_workers as workers

    for module in (engine, workers):
        replace_once(module, "maybe_fix_3d_position_ids", _laying_out_rows)


def _laying_out_rows(original: "Callable[[TensorDict], None]") -> "Callable[[TensorDict], None]":
    from verl.utils.tensordict_utils import nested_tensor_from_tensor_list

    def lay_out(data: "TensorDict") -> None:
        positions = data.get("position_ids", None)
        if positions is not None and positions.is_nested and positions.dim() == 3:
            values, offsets = positions.values(), positions.offsets()
            if values.shape[-1] != offsets[-1]:
                rows = values.split(offsets.diff().tolist())
                data["position_ids"] = nested_tensor_from_tensor_list(list(rows))
        original(data)

    return lay_out
