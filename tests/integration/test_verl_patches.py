"""Every patch of third-party code must be needed: if `test_NAME_is_needed` fails, the patch can be removed.

Where another test in this process may have applied the patch, the test examines the source and not the function.
"""

import importlib.metadata
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
import verl
import verl.utils.distributed
import verl.utils.model
from tensordict import TensorDict
from torch.distributed.distributed_c10d import BackendConfig
from torch.distributed.fsdp import CPUOffloadPolicy
from transfer_queue.utils import serial_utils
from transfer_queue.utils.serial_utils import MsgpackDecoder
from verl.plugin import platform
from verl.utils import tensordict_utils
from verl.workers import engine_workers
from verl.workers.engine import base as engine_base
from verl.workers.engine.fsdp import transformer_impl

from support.vision import tiny_vision_model
from turnmill.core.process_mark import PROCESS_MARK
from turnmill.runs.ray_cluster import SETUP_WORKER
from turnmill.training.verl.config import compose_defaults
from turnmill.training.verl.patches import (
    Patch,
    linear_weights,
    no_pictures,
    position_rows,
    queue_decoding,
    table,
    vision_attention,
)

DEVELOPMENT = Path(__file__).parents[2] / "docs" / "development.md"

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


@pytest.mark.parametrize("name", table.ALL)
def test_patch_is_made_for_the_installed_version(name):
    patch = table.ALL[name]

    assert importlib.metadata.version(patch.distribution) == patch.version
    assert f"/blob/{'ray-' if patch.distribution == 'ray' else 'v'}{patch.version}/" in patch.source


@pytest.mark.parametrize("name", table.ALL)
def test_patch_links_to_the_line_that_makes_it_necessary(name):
    lines = source_of(table.ALL[name]).read_text().splitlines()
    number = int(table.ALL[name].source.rpartition("#L")[2])

    assert table.ALL[name].quote in lines[number - 1]


def source_of(patch: Patch) -> Path:
    """The installed file that a patch links to: a repository has the package in its root, Ray's in `python/`."""
    inside = patch.source.partition(f"{patch.version}/")[2].partition("#")[0].removeprefix("python/")
    package, _, rest = inside.partition("/")
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / rest


def test_every_patch_has_its_module_and_a_test_that_it_is_needed():
    folder = Path(inspect.getfile(table)).parent
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "table"}

    assert set(table.ALL) == modules
    assert [name for name in modules if f"test_{name}_is_needed" not in globals()] == []


def test_the_documentation_lists_all_patches():
    shown = table.markdown()

    assert [row.split("`")[1] for row in shown.splitlines()[2:]] == [*table.ALL]
    assert shown in DEVELOPMENT.read_text()


def test_weight_sockets_is_needed():
    """verl names the sockets by the number of the job, which it uses for nothing else."""
    folder = Path(inspect.getfile(verl)).parent
    sources = {path.name: path.read_text() for path in folder.rglob("*.py")}

    asked = {name: source.count("get_job_id()") for name, source in sources.items() if "get_job_id()" in source}
    assert asked == {"vllm_async_server.py": 1, "vllm_rollout.py": 1, "vllm_pd_replica.py": 1}
    assert 'f"ipc:///tmp/rl-colocate-zmq-{job_id}-' in sources["vllm_rollout.py"]


def test_job_id_carries_the_mark_of_the_run(monkeypatch):
    import ray
    from ray.runtime_context import RuntimeContext

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    context = RuntimeContext(SimpleNamespace(current_job_id=ray.JobID.from_int(1)))

    monkeypatch.setenv(PROCESS_MARK, "abc")
    assert context.get_job_id() == "01000000-abc"
    monkeypatch.delenv(PROCESS_MARK)
    assert context.get_job_id() == "01000000"


def test_queue_controller_is_needed():
    """The queue has no setting for the machine of its controller."""
    controller = compose_defaults().transfer_queue.controller

    assert set(controller) == {"sampler", "polling_mode", "zmq_info"}


def test_queue_decoding_is_needed():
    """The queue calls itself for every value and copies every dictionary that it has received."""
    source = inspect.getsource(MsgpackDecoder)

    assert "return {k: self._reconstruct_special_types(v) for k, v in obj.items()}" in source


def queue_message() -> Any:
    """A message of rows with tags, and with tensors in every kind of container."""
    tensors = TensorDict({"a": torch.arange(3), "b": torch.nested.as_nested_tensor([torch.ones(2)] * 3)}, batch_size=3)
    row = {"score": 0.5, "key": "a_0_0", "episode": b"\0", "none": None, "more": {"list": [1, [2, "x"]]}}
    return {"rows": {"a_0_0": row, "a_1_0": dict(row)}, "tensors": tensors, "list": [tensors, (1, tensors)], "": {}}


def test_queue_decoding_gives_what_was_sent(monkeypatch):
    encoded = serial_utils.encode(queue_message())
    expected = serial_utils.decode(encoded)

    # Undone after the test.
    monkeypatch.setattr(
        MsgpackDecoder, "_reconstruct_special_types", vars(MsgpackDecoder)["_reconstruct_special_types"]
    )
    queue_decoding.apply()
    decoded = serial_utils.decode(encoded)

    assert MsgpackDecoder._reconstruct_special_types.is_turnmill_patch
    assert decoded["rows"] == expected["rows"] == queue_message()["rows"]
    assert [type(each) for each in decoded["list"]] == [type(each) for each in expected["list"]]
    found = (decoded["tensors"], decoded["list"][0], decoded["list"][1][1])
    assert all(isinstance(each, TensorDict) and each["a"].tolist() == [0, 1, 2] for each in found)
    assert [row.tolist() for row in decoded["tensors"]["b"].unbind()] == [[1.0, 1.0]] * 3
    assert decoded[""] == {}


def test_gloo_backend_is_needed():
    """verl names a backend that torch refuses on the CPU."""
    source = inspect.getsource(verl.utils.distributed)

    assert 'backend = backend or f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"' in source
    with pytest.raises(ValueError, match="Duplicate device type cpu"):
        BackendConfig("cpu:gloo,cpu:gloo")


def test_value_head_attention_is_needed():
    """verl loads value heads with flash attention whatever the configuration says."""
    source = inspect.getsource(verl.utils.model)
    loader = source[source.index("def load_valuehead_model(") :].split("\n\n\n")[0]

    assert loader.count('attn_implementation="flash_attention_2"') == 2
    assert "_attn_implementation" not in loader


def test_pinned_memory_is_needed():
    """verl asks for pinned memory for its reference model, and torch has none without an accelerator."""
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


def draws_an_id_for_an_actor_class(*, patched: bool) -> bool:
    """Declare an actor class in a separate process; True if forks of that process would then draw the same ids."""
    code = (
        "import ray; from turnmill.training.verl.patches import actor_class_ids\n"
        f"if {patched}: actor_class_ids.apply()\n"
        "@ray.remote\nclass Actor: ...\n"
        "print(actor_class_ids.differ_in_forks())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip() == "False"


def test_actor_class_ids_is_needed():
    """Ray draws an id for every declared actor class, and all forks continue with the same random numbers."""
    assert draws_an_id_for_an_actor_class(patched=False)


def test_actor_classes_get_ids_from_the_system():
    assert not draws_an_id_for_an_actor_class(patched=True)


RAYS_SETUP_WORKER = Path(ray.__file__).with_name("_private") / "workers" / "setup_worker.py"


def set_up(script: Path, folder: Path, context: dict[str, object], *flags: str) -> subprocess.CompletedProcess[str]:
    """Let a script set up a worker that prints its arguments and variables."""
    worker, rays = folder / "worker.py", folder / RAYS_SETUP_WORKER.name
    worker.write_text("import os, sys; print(sys.argv[1:], [os.environ.get(name) for name in 'ABC'])")
    rays.write_text(
        f"import runpy; print('by Ray', flush=True); runpy.run_path({str(RAYS_SETUP_WORKER)!r}, run_name='__main__')"
    )
    options = [f"--serialized-runtime-env-context={json.dumps(context)}", "--language=PYTHON"]
    command = [sys.executable, *flags, str(script), str(worker), "--name=a b", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=os.environ | {"C": "c"})


def test_worker_setup_is_needed(tmp_path):
    """Ray's script imports Ray, only to set variables and execute the worker."""
    assert "| ray._private" in set_up(RAYS_SETUP_WORKER, tmp_path, {}, "-X", "importtime").stderr.replace("|   ", "| ")


@pytest.mark.parametrize(
    ("context", "by_ray"),
    [
        ({}, False),
        ({"env_vars": {"A": "a 'b'", "B": ""}, "java_jars": [], "override_worker_entrypoint": None}, False),
        ({"env_vars": {"A": "1"}, "py_executable": f"'{sys.executable}' -E"}, False),
        ({"env_vars": {"A": "${C}/${NOT_THERE}"}}, True),
        ({"env_vars": {"A": "1"}, "command_prefix": ["B=2"]}, True),
    ],
)
def test_workers_are_set_up_as_by_rays_script(tmp_path: Path, context: dict[str, object], by_ray: bool):
    done, expected = (set_up(script, tmp_path, context).stdout for script in (SETUP_WORKER, RAYS_SETUP_WORKER))

    assert done == ("by Ray\n" if by_ray else "") + expected
    assert expected.startswith("['--name=a b'] [")


@pytest.fixture
def layers(monkeypatch):
    """vLLM's module of linear layers, restored after the test."""
    module = pytest.importorskip("vllm.model_executor.layers.utils")
    monkeypatch.setattr(module, "dispatch_cpu_unquantized_gemm", module.dispatch_cpu_unquantized_gemm)
    return module


def linear() -> torch.nn.Linear:
    return torch.nn.Linear(64, 64, bias=False).requires_grad_(False)


def test_linear_weights_is_needed(layers):
    """vLLM drops the weight of a linear layer once it is packed."""
    layer = linear()

    layers.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)

    assert layer.weight.numel() == 0


def test_linear_layer_keeps_its_weight_for_the_next_weight_sync(layers):
    layer = linear()
    expected = torch.nn.functional.linear(torch.ones(2, 64), layer.weight)

    linear_weights.apply()
    linear_weights.apply()
    layers.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)

    assert layer.weight.shape == (64, 64)
    torch.testing.assert_close(layers.cpu_unquantized_gemm(layer, torch.ones(2, 64), layer.weight), expected)


@pytest.fixture
def qwen2_vl(monkeypatch):
    """verl's module of Qwen2-VL and transformers' classes, restored after the test."""
    import verl.models.transformers.qwen2_vl as module
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl
    from transformers.models.qwen2_vl import modeling_qwen2_vl

    for name in ("_get_input_embeds", "qwen2_vl_attn_forward"):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, inspect.getclosurevars(original).nonlocals.get("original", original))
    for classes, prefix in ((modeling_qwen2_vl, "Qwen2VL"), (modeling_qwen2_5_vl, "Qwen2_5_VL")):
        for name in ("Model", "ForConditionalGeneration", "Attention"):
            kind = getattr(classes, prefix + name)
            monkeypatch.setattr(kind, "forward", kind.forward)
    return module


def vision_network() -> Any:
    """A tiny Qwen2-VL that attends as models do on machines without flash attention."""
    network = tiny_vision_model().network
    network.set_attn_implementation("sdpa")
    return network


def packed(lengths: list[int]) -> dict[str, torch.Tensor]:
    """Rows of text, one after the other in one, as verl passes them to a model that reads pictures."""
    ids = torch.randint(3, 90, (1, sum(lengths)), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "position_ids": torch.cat([torch.arange(n) for n in lengths]).expand(4, 1, -1)}


def verl_logits(network: Any, *, packs: bool, **inputs: torch.Tensor) -> torch.Tensor:
    from verl.models.transformers.monkey_patch import apply_monkey_patch

    apply_monkey_patch(network, use_remove_padding=packs)
    with torch.no_grad():
        return network(**inputs, use_cache=False).logits[0]


def test_no_pictures_is_needed(qwen2_vl):
    with pytest.raises(AttributeError, match="has no attribute 'mean'"):
        verl_logits(vision_network(), packs=False, **packed([5]))


def test_vision_attention_is_needed(qwen2_vl):
    """verl's attention asks for names that it has only beside flash attention."""
    no_pictures.apply()

    with pytest.raises(NameError, match="_flash_"):
        verl_logits(vision_network(), packs=True, **packed([5]))


def test_packed_rows_without_pictures_have_the_logits_that_each_has_alone(qwen2_vl):
    network, rows = vision_network(), packed([5, 7])
    alone = [network(input_ids=row).logits[0].detach() for row in rows["input_ids"].split([5, 7], dim=1)]

    no_pictures.apply()
    vision_attention.apply()
    logits = verl_logits(network, packs=True, **rows)

    torch.testing.assert_close(logits, torch.cat(alone))


def positions(*lengths: int) -> TensorDict:
    """Positions of rows in four dimensions, as they come out of the queue."""
    rows = [torch.arange(4 * length).view(4, length) for length in lengths]
    return TensorDict(
        {"position_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}, batch_size=len(lengths)
    )


def test_position_rows_is_needed():
    """verl names a dimension of rows of one length in which they are not laid out."""
    batch = positions(6, 6)

    tensordict_utils.maybe_fix_3d_position_ids(batch)

    with pytest.raises(RuntimeError):
        batch["position_ids"].unbind()


@pytest.mark.parametrize("lengths", [(6, 6), (4, 4), (6,), (6, 3)])
def test_workers_keep_positions_of_several_dimensions(monkeypatch, lengths):
    batch, expected = positions(*lengths), positions(*lengths)["position_ids"].unbind()
    for module in (engine_workers, engine_base):
        monkeypatch.setattr(module, "maybe_fix_3d_position_ids", tensordict_utils.maybe_fix_3d_position_ids)

    position_rows.apply()
    for module in (engine_workers, engine_base):
        module.maybe_fix_3d_position_ids(batch)
    first = tensordict_utils.index_select_tensor_dict(batch, [0])

    assert [row.tolist() for row in batch["position_ids"].unbind()] == [row.tolist() for row in expected]
    assert first["position_ids"].values().tolist() == expected[0].tolist()


def test_verl_s_processes_on_the_cpu_are_patched(tmp_path):
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
