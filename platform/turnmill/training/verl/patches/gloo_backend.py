"""A valid backend name for verl's process group on the CPU."""

from collections.abc import Callable

from turnmill.training.verl.patches import Patch, replace_once

PATCH = Patch(
    target="verl.utils.distributed.initialize_global_process_group_ray",
    change="the backend is `cpu:gloo`",
    reason="verl names it `cpu:gloo,cpu:gloo` on a CPU, and torch refuses a device that is named twice",
    distribution="verl",
    version="0.9.1",
    source="https://github.com/verl-project/verl/blob/v0.9.1/verl/utils/distributed.py#L89",
    quote='backend = backend or f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"',
    issue="https://github.com/verl-project/verl/issues/6237",
)

Initialize = Callable[[int | None, str | None], object]


def apply() -> None:
    """Apply the patch in this process; further calls have no effect."""
    import verl.utils.distributed as distributed

    def with_gloo(original: Initialize) -> Initialize:
        def initialize(timeout_second: int | None = None, backend: str | None = None) -> object:
            return original(timeout_second, backend or "cpu:gloo")

        return initialize

    replace_once(distributed, "initialize_global_process_group_ray", with_gloo)
