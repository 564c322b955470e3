from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from omegaconf import DictConfig, OmegaConf
from transformers import Qwen2Config

from support.fsdp_memory import measured_bytes
from support.jobs import job
from support.models import model_without_weights
from turnmill.core.errors import SettingsError
from turnmill.jobs import AgentTrainingJob
from turnmill.sizing.memory import GIB, Estimate, Trained, estimate, gpu_gib, require_fit
from turnmill.sizing.model import Model, Parameters
from turnmill.sizing.placement import placement
from turnmill.training.verl.config import build_verl_config

FSDP = OmegaConf.create({"param_offload": False, "optimizer_offload": False})


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """Sizes of Qwen2.5-0.5B with fewer layers."""
    folder = tmp_path_factory.mktemp("small")
    Qwen2Config(
        hidden_size=896, intermediate_size=4864, num_hidden_layers=6, num_attention_heads=14, num_key_value_heads=2,
        vocab_size=151936, tie_word_embeddings=True,
    ).save_pretrained(folder)  # fmt: skip
    return folder


@pytest.mark.parametrize("is_critic", [False, True])
def test_parameters_are_counted_without_building_the_model(small, is_critic):
    config: Any = transformers.AutoConfig.from_pretrained(small)
    config.num_labels = 1
    kind = transformers.AutoModelForTokenClassification if is_critic else transformers.AutoModelForCausalLM
    built = kind.from_config(config)

    assert Model(small).parameters(is_critic=is_critic).total == sum(each.numel() for each in built.parameters())


@pytest.mark.nightly
@pytest.mark.parametrize(("ranks", "is_critic"), [(2, False), (8, True)])
def test_the_estimate_is_within_a_tenth_of_what_fsdp_holds(small, ranks, is_critic):
    model, tokens = Model(small), 4096
    activations = model.activation_bytes(tokens, is_critic=is_critic)
    trained = Trained("policy", model.parameters(is_critic=is_critic), activations, FSDP, ranks)

    found = sum(part.gib for part in (*trained.resident(), *trained.learning()) if "Adam" not in part.name)

    assert found == pytest.approx(measured_bytes(small, tokens=tokens, ranks=ranks, is_critic=is_critic) / GIB, rel=0.1)


def test_flash_attention_needs_no_mask(small, monkeypatch):
    tokens = 16_384
    without = Model(small).activation_bytes(tokens, is_critic=True, has_mask=False)
    monkeypatch.setattr("transformers.models.qwen2.modeling_qwen2.create_causal_mask", lambda **arguments: None)

    assert without == pytest.approx(Model(small).activation_bytes(tokens, is_critic=True), rel=0.05)


def test_bytes_of_the_cache_count_heads_of_keys_and_values(small):
    assert Model(small).key_value_bytes == 2 * 6 * 2 * 64 * 2


def trained(**fsdp: Any) -> Trained:
    config = OmegaConf.create({"param_offload": False, "optimizer_offload": False} | fsdp)
    return Trained("policy", Parameters(16 * GIB, per_layer=GIB, outside_layers=2 * GIB), 3 * GIB, config, ranks=8)


def sums(parts: Any) -> dict[str, float]:
    return {part.name.removeprefix("policy: "): part.gib for part in parts}


def test_what_learns_is_sharded_over_all_ranks():
    assert sums(trained().resident()) == {"weights in float32": 8, "Adam's moments": 16}
    assert sums(trained().learning()) == {
        "gradients": 8,
        "gathered layers in bfloat16": 8,
        "gradients of a layer, not yet sharded": 4,
        "activations of a micro-batch": 3,
    }


@pytest.mark.parametrize("logits_bytes", [0, GIB])
def test_gradients_stay_until_the_optimizer_has_stepped(logits_bytes):
    found = replace(trained(), logits_bytes=logits_bytes)

    assert sums(found.updating()) == {"gradients": 8, "Adam's intermediate results": 8}
    assert sums(replace(found, fsdp=OmegaConf.create({"offload_policy": True})).updating()) == {
        "Adam's intermediate results": 8
    }


def test_what_is_offloaded_waits_in_the_machines_memory_and_returns_to_learn():
    offloaded = trained(param_offload=True, optimizer_offload=True)

    assert offloaded.resident() == []
    assert offloaded.host_gib(4) == 4 * (8 + 16)
    assert {"weights in float32", "Adam's moments", "gradients"} <= sums(offloaded.learning()).keys()
    assert trained().host_gib(4) == 0


def test_shards_of_a_smaller_group_are_larger():
    assert sums(trained(fsdp_size=4).resident())["weights in float32"] == 16


@pytest.fixture
def on_gpus(tmp_path):
    """Estimate a job's memory on GPUs of 80 GiB."""

    def of(**changes: Any) -> tuple[Estimate, DictConfig, AgentTrainingJob]:
        model = model_without_weights(tmp_path)
        settings = AgentTrainingJob.model_validate(job(**changes))
        config = build_verl_config(settings, model=model, run_dir=tmp_path / "run", device="cuda")
        return estimate(config, Model(model), train_gib=80.0, rollout_gib=45.0), config, settings

    return of


def test_engines_share_the_gpus_of_training_unless_they_have_their_own(on_gpus):
    shared, config, settings = on_gpus()
    assert [phase.name for phase in shared.phases] == ["learning (policy)", "learning (critic)", "rollout"]
    assert {phase.field for phase in shared.phases} == {"spec.resources.train"}
    names = [part.name for part in shared.phases[-1].parts]
    assert "critic: Adam's moments" in names
    assert shared.phases[-1].gib - sum(
        part.gib for part in shared.phases[-1].parts if not part.name.startswith("engine")
    ) == pytest.approx(40)
    assert "an engine" in placement(settings, config)[1].per_gpu

    apart, config, settings = on_gpus(training__mode="separate_async", resources__rollout={"accelerator": "A40"})
    assert apart.phases[-1].field == "spec.resources.rollout"
    assert all(part.name.startswith("engine") for part in apart.phases[-1].parts)
    assert apart.phases[-1].gib == pytest.approx(0.85 * 45)
    assert [place.machines for place in placement(settings, config)] == ["head", "1 x 1 GPU of any kind", "1 x 1 A40"]


def test_logits_of_a_whole_micro_batch_count_unless_they_are_computed_in_chunks(on_gpus):
    chunked, config, _ = on_gpus()
    whole, _, _ = on_gpus(resources__train={"chunkedLogits": False})

    tokens, vocabulary = config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu, 16
    assert whole.phases[0].gib - chunked.phases[0].gib == pytest.approx(12 * tokens * vocabulary / GIB)


def test_the_reference_waits_in_the_machines_memory(on_gpus):
    without, _, _ = on_gpus(algorithm__kl={"coefficient": 0})
    with_reference, config, settings = on_gpus(algorithm__kl={"coefficient": 0.01})

    assert (without.host_gib, with_reference.host_gib > 0) == (0, True)
    assert "a rank of the reference" in placement(settings, config)[1].per_gpu


def test_what_does_not_fit_is_refused_with_its_largest_part(on_gpus):
    found, _, _ = on_gpus()
    require_fit(found, {"spec.resources.train": 80.0})
    require_fit(found, {"spec.resources.train": None})

    with pytest.raises(
        SettingsError, match=r"spec.resources.train: rollout takes 42.0 GiB on each GPU, which has 24.0 GiB"
    ):
        require_fit(found, {"spec.resources.train": 24.0})


def test_a_cache_that_is_shorter_than_a_row_is_refused(on_gpus):
    found, _, _ = on_gpus(resources__rollout={"gpuMemoryShare": 0.01})

    assert found.cache is not None
    assert found.cache.tokens == 0
    with pytest.raises(SettingsError, match="The engine's cache has room for 0 tokens"):
        require_fit(found, {"spec.resources.train": 80.0})


def test_a_folder_without_a_configuration_is_an_error_of_the_job(tmp_path):
    with pytest.raises(SettingsError, match=r"spec.model.path: .* has no config.json of a language model"):
        Model(tmp_path)


def test_gpus_are_known_by_name_or_by_what_is_given():
    assert gpu_gib("H100", None) == 79.6
    assert gpu_gib("H100", 40.0) == 40.0
    assert gpu_gib(None, None) is None
    assert gpu_gib("MI300X", None) is None
