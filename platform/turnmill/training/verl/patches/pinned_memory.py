"""A reference model in ordinary memory, as torch pins memory only with an accelerator."""

from contextlib import AbstractContextManager

from turnmill.training.verl.patches import Patch, replaced

PATCH = Patch(
    target="verl.workers.engine.fsdp.transformer_impl.CPUOffloadPolicy",
    change="the reference model is not offloaded on a CPU",
    reason="verl offloads it to pinned memory, which torch has only beside an accelerator",
    distribution="verl",
    version="0.9.1",
    source="https://github.com/verl-project/verl/blob/v0.9.1/verl/workers/engine/fsdp/transformer_impl.py#L462",
    quote="offload_policy = CPUOffloadPolicy(pin_memory=True)",
)


def applied() -> AbstractContextManager[None]:
    """Apply the patch in this process while the context lasts."""
    from verl.workers.engine.fsdp import transformer_impl

    return replaced(transformer_impl, "CPUOffloadPolicy", _no_policy)


def _no_policy(*, pin_memory: bool) -> None:
    """Replace the class of the offload policy; None leaves the weights in place."""
