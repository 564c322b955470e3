"""Exports of checkpoints that one process has saved; `test_export.py` of the integration tests has engines' own."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint import save
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.exported_runs import complete, make_run
from support.fsdp_ranks import save_model
from turnmill.cli.main import main

LORA = {"rank": 4, "alpha": 8}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "initial"
    save_model(folder)
    return folder


def trained(folder: Path) -> Any:
    """Return the model with other weights, as after a training."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.01)
    return model


def save_checkpoint(model: Any, initial: Path, actor: Path, **others: Any) -> None:
    """Save what an engine saves."""
    state = {"model": dict(model.state_dict())} | others
    save(state, checkpoint_id=actor / "state", no_dist=True)
    shutil.copytree(initial, actor / "huggingface", ignore=shutil.ignore_patterns("*.safetensors"))


@pytest.fixture
def run_dir(model: Path, tmp_path: Path) -> Path:
    folder, actor = make_run(model, tmp_path / "run")
    save_checkpoint(trained(model), model, actor, optimizer={"step": torch.ones(3)})
    complete(folder)
    return folder


@pytest.fixture
def refusal(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Runs an export that must be refused without a trace, and returns the message."""

    def refuse(*arguments: str, run: Path = run_dir) -> str:
        output = tmp_path / "models" / "policy"
        capsys.readouterr()
        assert main(["export", str(run), "--output", str(output), *arguments]) == 2
        assert not output.exists()
        assert [*tmp_path.glob("models/.*")] == []
        return capsys.readouterr().err

    return refuse


def test_the_weights_of_the_checkpoint_are_exported_in_files_that_others_may_read(run_dir: Path, model: Path):
    assert main(["export", str(run_dir), "--output", str(run_dir / "model")]) == 0

    exported = AutoModelForCausalLM.from_pretrained(run_dir / "model").state_dict()
    for name, weight in trained(model).state_dict().items():
        assert torch.equal(weight, exported[name]), name
    assert len(AutoTokenizer.from_pretrained(run_dir / "model")) == len(AutoTokenizer.from_pretrained(model))
    readable = (run_dir / "model/README.md").stat().st_mode
    assert {file.stat().st_mode for file in (run_dir / "model").iterdir()} == {readable}


def test_the_type_of_the_weights_is_that_of_the_initial_model_unless_another_is_chosen(run_dir: Path, model: Path):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))

    assert main(["export", str(run_dir), "--output", str(run_dir / "as-before")]) == 0
    assert main(["export", str(run_dir), "--output", str(run_dir / "chosen"), "--dtype", "float16"]) == 0

    types = [
        {weight.dtype for weight in load_file(run_dir / name / "model.safetensors").values()}
        for name in ("as-before", "chosen")
    ]
    assert types == [{torch.bfloat16}, {torch.float16}]
    assert json.loads((run_dir / "as-before/config.json").read_text())["dtype"] == "bfloat16"


def test_adapters_are_scaled_as_the_checkpoint_says_and_merged(model: Path, tmp_path: Path):
    from peft import LoraConfig, get_peft_model

    run, actor = make_run(model, tmp_path / "adapted", lora=LORA)
    adapted = get_peft_model(
        trained(model), LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules=["q_proj"])
    )
    torch.nn.init.ones_(adapted.base_model.model.model.layers[1].self_attn.q_proj.lora_B["default"].weight)
    save_checkpoint(adapted, model, actor)
    (actor / "lora_train_meta.json").write_text(json.dumps({"r": 4, "lora_alpha": 8}))
    complete(run)

    assert main(["export", str(run), "--output", str(run / "merged")]) == 0

    exported = AutoModelForCausalLM.from_pretrained(run / "merged").state_dict()
    for name, weight in adapted.merge_and_unload().state_dict().items():
        torch.testing.assert_close(weight, exported[name])
    name = "model.layers.1.self_attn.q_proj.weight"
    assert (exported[name] - trained(model).state_dict()[name]).abs().max() > 0.1


def test_adapters_without_their_scale_or_without_their_model_are_refused(model: Path, tmp_path: Path, refusal):
    from peft import LoraConfig, get_peft_model

    run, actor = make_run(model, tmp_path / "adapted", lora=LORA)
    adapted = get_peft_model(trained(model), LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj"]))
    save_checkpoint(adapted, model, actor)
    complete(run)

    assert "does not tell rank and alpha of the adapters" in refusal(run=run)

    bare = {name: weight for name, weight in adapted.state_dict().items() if "lora_" in name}
    shutil.rmtree(actor)
    actor.mkdir()
    shutil.copytree(model, actor / "huggingface", ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(bare, actor / "model_world_size_1_rank_0.pt")
    (actor / "lora_train_meta.json").write_text(json.dumps({"r": 4, "lora_alpha": 8}))
    complete(run)

    assert "--lora merged:" in (message := refusal(run=run))
    assert "Use --lora adapter." in message


def test_a_checkpoint_that_cannot_be_used_is_refused(run_dir: Path, refusal):
    actor = run_dir / "checkpoints/global_step_2/actor"
    assert "no usable checkpoint of step 7. Complete ones: 2." in refusal("--step", "7")

    data = next((actor / "state").glob("*.distcp"))
    content = data.read_bytes()
    data.write_bytes(content[:-100] + bytes(100))
    assert f"the content of actor/state/{data.name} has changed" in refusal()

    data.write_bytes(content)
    (actor / "huggingface/config.json").write_text("{}")
    assert "config.json has" in refusal()


def test_weights_that_are_not_those_of_the_configuration_are_refused(run_dir: Path, model: Path, refusal):
    actor = run_dir / "checkpoints/global_step_2/actor"
    config = json.loads((model / "config.json").read_text())

    def layers(number: int) -> dict[str, Any]:
        return {"num_hidden_layers": number, "layer_types": ["full_attention"] * number}

    (actor / "huggingface/config.json").write_text(json.dumps(config | layers(3)))
    complete(run_dir)

    assert "lacks model.layers.2" in refusal()

    (actor / "huggingface/config.json").write_text(json.dumps(config | layers(1)))
    complete(run_dir)

    assert "has model.layers.1" in refusal()

    (actor / "huggingface/config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    complete(run_dir)

    assert "size mismatch" in refusal()


def test_a_checkpoint_of_another_engine_is_refused(run_dir: Path, refusal):
    actor = run_dir / "checkpoints/global_step_2/actor"
    shutil.rmtree(actor / "state")
    complete(run_dir)

    assert "python -m verl.model_merger merge --backend megatron" in refusal()


def test_adapters_are_only_exported_of_a_run_that_has_some(refusal):
    assert "--lora adapter: the run has no spec.model.lora" in refusal("--lora", "adapter")


def test_a_folder_that_is_not_empty_is_left_as_it_is(run_dir: Path, tmp_path: Path, capsys):
    taken = tmp_path / "taken"
    taken.mkdir()
    assert main(["export", str(run_dir), "--output", str(taken)]) == 0
    before = sorted(path.name for path in taken.iterdir())

    assert main(["export", str(run_dir), "--output", str(taken)]) == 2

    assert "is not an empty folder" in capsys.readouterr().err
    assert sorted(path.name for path in taken.iterdir()) == before


def test_a_file_system_without_room_leaves_no_folder(refusal, monkeypatch):
    def full(*arguments: Any, **settings: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)

    assert "cannot be written: No space left on device" in refusal()


def test_nothing_is_done_for_a_hub_that_cannot_be_reached(refusal, monkeypatch):
    assert "a model of the hub is named owner/name" in refusal("--push", "policy")

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE forbids uploads" in refusal("--push", "owner/policy")

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setenv("HF_HOME", os.devnull)
    assert "Log in with `hf auth login`" in refusal("--push", "owner/policy")
