"""Check of the attention kernel of policies and critics."""

from importlib import metadata
from typing import TYPE_CHECKING

from turnmill.doctor.results import CheckFailedError, Machine

if TYPE_CHECKING:
    from torch import Tensor


def attention(machine: Machine) -> str:
    """Attention kernels against the formula, forward and backward, in the type in which a policy computes."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    dtype, tolerance = (torch.bfloat16, 2e-2) if machine.device == "cuda" else (torch.float32, 1e-4)
    generator = torch.Generator(machine.device).manual_seed(0)
    size = (1, 4, 256, 64)

    def sample() -> torch.Tensor:
        values = torch.randn(size, generator=generator, device=machine.device)
        return values.to(dtype).requires_grad_()

    q, k, v = sample(), sample(), sample()
    fused = scaled_dot_product_attention(q, k, v, is_causal=True)
    gradients = torch.autograd.grad(fused.float().square().sum(), (q, k, v))
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    masked = torch.full((size[2], size[2]), -torch.inf, dtype=torch.float64, device=machine.device).triu(1)
    weights = torch.softmax(exact[0] @ exact[1].transpose(-1, -2) / size[3] ** 0.5 + masked, -1)
    expected = weights @ exact[2]
    expected_gradients = torch.autograd.grad(expected.square().sum(), exact)
    error = max(
        _relative_error(found, wanted)
        for found, wanted in zip((fused, *gradients), (expected, *expected_gradients), strict=True)
    )
    if not error <= tolerance:
        raise CheckFailedError(
            f"sdpa in {dtype} differs from the formula by {error:.1e}, allowed is {tolerance:.0e}",
            "Report it with the output of `turnmill doctor --json`, and try another driver.",
        )
    others = [name for name in ("flash-attn", "flashinfer-python", "triton") if _version(name)]
    versions = "".join(f", {name} {_version(name)}" for name in others)
    return f"sdpa in {str(dtype).removeprefix('torch.')} within {error:.0e}{versions}"


def _relative_error(found: "Tensor", expected: "Tensor") -> float:
    return float((found.double() - expected).norm().detach() / expected.norm().detach())


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
