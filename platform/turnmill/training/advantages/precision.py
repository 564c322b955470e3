"""Type of a step's numbers: models under autocast return bfloat16, and nothing is summed in that."""

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """Return `x` as float32, or unchanged if it is wider. Sums of bfloat16 are off by per cents."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
