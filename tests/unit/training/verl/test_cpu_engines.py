"""What engines without a GPU send to inference."""

import copy
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from support.fsdp_ranks import process_group
from turnmill.jobs.model import WarmStart
from turnmill.training.verl.cpu.engines import CpuPolicyEngine
from turnmill.training.warm_start.cloning import build_model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whole_weights_are_sent_in_their_type_with_the_adapters_which_stay_apart(tmp_path: Path, dtype: torch.dtype):
    model = build_model(8, WarmStart(hidden_size=16)).to(dtype)
    adapted = get_peft_model(model, LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"]))
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.constant_(weight, 0.5)
    before = copy.deepcopy(adapted.state_dict())
    merged = copy.deepcopy(adapted).merge_and_unload().state_dict()
    engine = object.__new__(CpuPolicyEngine)

    with process_group(0, 1, tmp_path / "group"):
        for layer in model.model.layers:
            fully_shard(layer)
        engine.module = fully_shard(adapted)
        sent = dict(engine._merged_lora_per_tensor_param())
        after = {name: weight.full_tensor() for name, weight in engine.module.state_dict().items()}

    assert sent.keys() == merged.keys()
    for name, weight in sent.items():
        assert not isinstance(weight, DTensor)
        assert weight.dtype == dtype
        torch.testing.assert_close(weight, merged[name])
    assert all(torch.equal(weight, before[name]) for name, weight in after.items())
