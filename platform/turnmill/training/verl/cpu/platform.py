"""Platform `cpu` for verl 0.9.1: gloo, no devices, GPUs as a logical Ray resource."""

import types
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


class CpuDevice(types.ModuleType):
    """torch.cpu with the functions of torch.cuda that verl calls."""

    def __init__(self) -> None:
        super().__init__("turnmill_cpu_device")
        # "No accelerator": code guarded by is_available() is skipped, everything else gets a harmless answer.
        self.is_available = lambda: False
        self.device_count = lambda: 1
        self.current_device = lambda: "cpu"
        self.get_device_name = lambda *_: "CPU"
        self.mem_get_info = lambda *_: (0, 1)
        self.get_rng_state = lambda *_: torch.get_rng_state()
        for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
            setattr(self, name, lambda *_: 0)
        for name in (
            "set_device",
            "synchronize",
            "empty_cache",
            "ipc_collect",
            "reset_peak_memory_stats",
            "set_rng_state",
            "manual_seed",
            "manual_seed_all",
        ):
            setattr(self, name, lambda *_, **__: None)

    def __getattr__(self, name: str) -> object:
        return getattr(torch.cpu, name)


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """A machine without an accelerator."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = CpuDevice()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None: ...

    def manual_seed_all(self, seed: int) -> None: ...

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        # Weights cross to vLLM through shared memory instead.
        return False

    def rollout_env_vars(self) -> dict[str, str]:
        return {}

    def cudart(self) -> None:
        return None
