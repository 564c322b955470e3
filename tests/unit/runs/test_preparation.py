from importlib import metadata
from pathlib import Path

import pytest

from support.jobs import job
from support.models import model_without_weights
from turnmill.core.errors import SettingsError
from turnmill.jobs import AgentTrainingJob
from turnmill.observability.run_folder import RunFolder
from turnmill.runs import preparation
from turnmill.runs.preparation import process_environment, resolve_device, runtime_env


def set_machine(monkeypatch: pytest.MonkeyPatch, *, gpu: bool, torch: str) -> None:
    version = metadata.version
    monkeypatch.setattr(preparation, "shows_gpu", lambda: gpu)
    monkeypatch.setattr(metadata, "version", lambda name: torch if name == "torch" else version(name))


def test_the_cpu_is_always_available():
    assert resolve_device("cpu") == "cpu"


@pytest.mark.parametrize(
    ("gpu", "torch", "device"),
    [(False, "2.13.0", "cpu"), (True, "2.13.0+cpu", "cpu"), (True, "2.13.0", "cuda"), (True, "2.13.0+cu130", "cuda")],
)
def test_auto_is_cuda_with_a_gpu_and_a_build_of_torch_for_it(monkeypatch, gpu: bool, torch: str, device: str):
    set_machine(monkeypatch, gpu=gpu, torch=torch)

    assert resolve_device("auto") == device


def test_cuda_is_refused_without_a_gpu(monkeypatch):
    set_machine(monkeypatch, gpu=False, torch="2.13.0")

    with pytest.raises(SettingsError, match=r"spec\.resources\.device: cuda.*Use cpu or auto"):
        resolve_device("cuda")


def test_cuda_is_refused_with_a_build_of_torch_for_cpus(monkeypatch):
    set_machine(monkeypatch, gpu=True, torch="2.13.0+cpu")

    with pytest.raises(SettingsError, match=r"device: cuda.*torch 2\.13\.0\+cpu has no CUDA.*make install DEVICE=cuda"):
        resolve_device("cuda")


OTHER_ACCELERATORS = {"HCCL_HOST_SOCKET_PORT_RANGE", "HCCL_NPU_SOCKET_PORT_RANGE", "HSA_NO_SCRATCH_RECLAIM"}


def test_processes_on_gpus_get_the_variables_of_verls_own_launcher(monkeypatch):
    from verl.trainer.constants_ppo import PPO_RAY_RUNTIME_ENV

    variables = PPO_RAY_RUNTIME_ENV["env_vars"]
    for name in variables:
        monkeypatch.delenv(name, raising=False)
    environment = process_environment("cuda")

    # vLLM's names of the level: WARN and WARNING are the same.
    expected = {**variables, "VLLM_LOGGING_LEVEL": "WARNING"}
    assert {name: environment.get(name) for name in variables.keys() - OTHER_ACCELERATORS} == {
        name: expected[name] for name in variables.keys() - OTHER_ACCELERATORS
    }


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_workers_keep_a_variable_that_the_user_or_the_pod_has_set(monkeypatch, device: str):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")

    variables = runtime_env(process_environment(device), [])["env_vars"]

    assert not {"NCCL_DEBUG", "VLLM_LOGGING_LEVEL", "HF_HUB_OFFLINE"} & variables.keys()


def test_a_run_without_its_model_is_refused_before_it_starts(tmp_path):
    def model_of(path: Path) -> Path:
        of_path = AgentTrainingJob.model_validate(job(model={"path": str(path)}))
        return preparation.ensure_model(of_path, RunFolder(tmp_path), lambda _: None, cache_dir=tmp_path)

    with pytest.raises(SettingsError, match=r"spec.model.path: '.*/none' is no folder on this machine"):
        model_of(tmp_path / "none")
    with pytest.raises(SettingsError, match=r"has no config.json and no tokenizer_config.json"):
        model_of(tmp_path)
    assert model_of(model_without_weights(tmp_path / "model")) == tmp_path / "model"
