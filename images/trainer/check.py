"""Checks an image for GPUs on a machine that has none, while the image is built.

LD_LIBRARY_PATH=FOLDER_OF_STUB_DRIVER check.py JOB.yaml...

- Every module that only GPUs use can be imported (with the driver of `stub_driver.sh`).
- The policy, the reference and the critic of every job load on verl's NVIDIA platform, with tiny weights.
- The engine of every job resolves to vLLM's configuration for an H100, whose worker and attention can be imported.

Kernels do not run: what they compute shows only on a GPU.
"""
# ruff: noqa: E402

import asyncio
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

os.environ |= {"VERL_PLATFORM": "nvidia", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}

import torch
import vllm.platforms
from vllm.platforms.cuda import NonNvmlCudaPlatform
from vllm.platforms.interface import DeviceCapability

GPUS = 8


class PretendedH100(NonNvmlCudaPlatform):
    """What vLLM would be told by the driver of a machine with eight H100s."""

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
        return DeviceCapability(9, 0)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return "NVIDIA H100 80GB HBM3"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return 80 * 2**30

    @classmethod
    def device_count(cls) -> int:
        return GPUS

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        return 132


# Before verl and vLLM's other modules look at the platform, which they do while they are imported.
vllm.platforms._current_platform = PretendedH100()
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: GPUS
torch.cuda.get_device_capability = lambda device=None: (9, 0)

from omegaconf import DictConfig, OmegaConf
from torch.distributed.device_mesh import init_device_mesh
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.utils import import_utils
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig
from verl.workers.engine.base import EngineRegistry
from verl.workers.rollout.vllm_rollout import vllm_async_server
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.attention.selector import get_attn_backend

from turnmill.jobs import load_job
from turnmill.training.verl.config import build_verl_config
from turnmill.training.warm_start.tokenizer import build_tokenizer

MODULES = (
    "cupy.cuda.nccl",
    "flashinfer",
    "triton",
    "verl.checkpoint_engine.nccl_checkpoint_engine",
    "vllm.device_allocator.cumem",
    "vllm.platforms.cuda",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu_worker",
    "vllm.vllm_flash_attn",
    "turnmill.training.verl.weight_transfer",
)
HEAD_SIZE = 64


def save_tiny_model(folder: Path) -> Path:
    """Save a Qwen2 model of a few thousand weights, whose context is as long as that of real ones."""
    config = Qwen2Config(
        vocab_size=256,
        hidden_size=4 * HEAD_SIZE,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=32768,
        architectures=["Qwen2ForCausalLM"],
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    build_tokenizer(["a", "b"]).save_pretrained(folder)
    return folder


def verl_config(file: Path, model: Path) -> DictConfig:
    """Return verl's configuration of a job for GPUs, with the tiny model."""
    job = load_job(file, [f"spec.model.path={model}"])
    config = build_verl_config(job, model=model, run_dir=model, device="cuda")
    OmegaConf.set_struct(config, False)
    OmegaConf.resolve(config)
    return config


@contextmanager
def claiming_a_gpu() -> Iterator[None]:
    """transformers refuses flash attention without a GPU before it looks for the package."""
    with (
        mock.patch.object(import_utils, "is_torch_cuda_available", return_value=True),
        mock.patch("transformers.modeling_flash_attention_utils.is_torch_cuda_available", return_value=True),
    ):
        yield


def check_models(config: DictConfig) -> str:
    """Load policy and critic as a training worker does; the reference is loaded as the policy is."""
    attention = {}
    for name, kind in (("policy", "language_model"), ("critic", "value_model")):
        if name == "critic" and not config.critic.enable:
            continue
        model_config: Any
        if name == "policy":
            model_config = omega_conf_to_dataclass(config.actor_rollout_ref.model, dataclass_type=HFModelConfig)
        else:
            critic = omega_conf_to_dataclass(config.critic)
            model_config = getattr(critic, "model_config", None) or critic.model
        engine_class = EngineRegistry.get_engine_cls(kind, "fsdp2")
        engine = engine_class.__new__(engine_class)
        engine.model_config = model_config
        engine.engine_config = SimpleNamespace(model_dtype="fp32", forward_only=False)
        engine.device_mesh = init_device_mesh("cpu", (1,))
        engine.use_remove_padding, engine.ulysses_sequence_parallel_size = True, 1
        with claiming_a_gpu():
            attention[name] = engine._build_module().config._attn_implementation
    return ", ".join(f"{name} with {implementation}" for name, implementation in attention.items())


class _Server(getattr(vllm_async_server.vLLMHttpServer, "__ray_metadata__", SimpleNamespace(  # type: ignore[misc]
    modified_class=vllm_async_server.vLLMHttpServer
)).modified_class):  # fmt: skip
    """verl's server, up to the configuration with which it would start the engine."""

    def __init__(self, config: DictConfig) -> None:
        self.config = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        self.model_config = omega_conf_to_dataclass(config.actor_rollout_ref.model, dataclass_type=HFModelConfig)
        self._validate_configs()
        self.node_rank = self.replica_rank = 0
        self.nnodes, self.gpus_per_node = 1, GPUS
        self.workers: list[object] = []
        self._disaggregation_role = "null"
        self._master_address, self._master_port, self._dp_rpc_port = "127.0.0.1", 1, 2
        self.engine_config: VllmConfig | None = None

    def _should_profile(self) -> bool:
        return False

    async def run_server(self, args: Any) -> None:
        engine_args = AsyncEngineArgs.from_cli_args(args)
        self.engine_config = engine_args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)


def check_engine(config: DictConfig) -> str:
    """Resolve the engine's configuration on H100s, and import its worker and its attention."""
    server = _Server(config)
    asyncio.run(server.launch_server())
    engine = server.engine_config
    if engine is None:
        raise RuntimeError("verl's server did not start an engine")
    for name in (engine.parallel_config.worker_cls, engine.parallel_config.worker_extension_cls):
        resolve_obj_by_qualname(name)
    with set_current_vllm_config(engine):
        attention = get_attn_backend(HEAD_SIZE, torch.bfloat16, None)
    return (
        f"{engine.model_config.dtype}, {engine.parallel_config.tensor_parallel_size} GPUs each, "
        f"{attention.__name__}, context of {engine.model_config.max_model_len} tokens"
    )


def main(files: list[str]) -> int:
    failures = 0

    def report(name: str, check: Callable[[], object]) -> None:
        nonlocal failures
        try:
            print(f"{name}: {check()}", flush=True)
        except BaseException as error:
            failures += 1
            cause = f" ({type(error.__cause__).__name__}: {error.__cause__})" if error.__cause__ else ""
            print(f"{name}: FAILED: {type(error).__name__}: {error}{cause}", file=sys.stderr, flush=True)

    for module in MODULES:
        report(f"import {module}", lambda module=module: importlib.import_module(module) and "ok")
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        model = save_tiny_model(Path(folder))
        for file in map(Path, files):
            report(f"{file.name}, models", lambda file=file: check_models(verl_config(file, model)))
            report(f"{file.name}, engine", lambda file=file: check_engine(verl_config(file, model)))
    print(f"{failures} failed" if failures else "everything for GPUs is there")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
