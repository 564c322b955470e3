from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, PretrainedConfig, Qwen2Config

from support.jobs import job, tool_job
from turnmill.core.errors import SettingsError
from turnmill.jobs import AgentTrainingJob
from turnmill.sizing.defaults import Completed, complete
from turnmill.sizing.memory import require_fit
from turnmill.sizing.model import Model
from turnmill.training.warm_start.tokenizer import build_tokenizer

# Sizes from the config.json of each model.
MODELS: dict[str, PretrainedConfig] = {
    "7B": Qwen2Config(
        hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
        vocab_size=152064, tie_word_embeddings=False,
    ),
    "14B": Qwen2Config(
        hidden_size=5120, intermediate_size=13824, num_hidden_layers=48, num_attention_heads=40, num_key_value_heads=8,
        vocab_size=152064, tie_word_embeddings=False,
    ),
    "32B": Qwen2Config(
        hidden_size=5120, intermediate_size=27648, num_hidden_layers=64, num_attention_heads=40, num_key_value_heads=8,
        vocab_size=152064, tie_word_embeddings=False,
    ),
    "70B": LlamaConfig(
        hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8,
        vocab_size=128256, tie_word_embeddings=False,
    ),
}  # fmt: skip


USUAL = {"train.offload": "none", "train.microBatchTokens": 16_384, "rollout.tensorParallel": 1,
         "rollout.gpuMemoryShare": 0.5}  # fmt: skip


class QuickModel(Model):
    """A model whose activations grow with tokens, width and layers, without the seconds that fake tensors take."""

    def activation_bytes(self, tokens: int, *, is_critic: bool = False, has_mask: bool = True) -> int:
        return int(tokens * self.text.hidden_size * 2 * (self.num_layers + 24) + (3 * tokens**2 if has_mask else 0))


@pytest.fixture
def completed(tmp_path):
    """Complete a job of a model on GPUs of a size in GiB."""

    def of(size: str, memory: float | None, *, nodes: int = 1, base: Any = tool_job, **changes: Any) -> Completed:
        config = MODELS[size]
        config.architectures = ["LlamaForCausalLM" if size == "70B" else "Qwen2ForCausalLM"]
        config.save_pretrained(tmp_path)
        build_tokenizer(["a"]).save_pretrained(tmp_path)
        train = {"nodes": nodes, "gpusPerNode": 8} | changes.pop("train", {})
        resources = {"train": train, "rollout": changes.pop("rollout", {})}
        settings = AgentTrainingJob.model_validate(base(model={"path": str(tmp_path)}, resources=resources, **changes))
        return complete(settings, QuickModel(tmp_path), Path(tmp_path), gpu_memory=memory)

    return of


def chosen(found: Completed) -> dict[str, Any]:
    return {choice.field.removeprefix("spec.resources."): choice.value for choice in found.choices}


@pytest.mark.parametrize(
    ("size", "nodes", "memory", "changed"),
    [
        ("7B", 1, 80, {}),
        ("14B", 1, 80, {"rollout.gpuMemoryShare": 0.6}),
        ("32B", 2, 80, {"rollout.tensorParallel": 2, "rollout.gpuMemoryShare": 0.6}),
        ("70B", 4, 80, {"rollout.tensorParallel": 4}),
    ],
)
def test_settings_are_the_usual_ones_but_where_a_models_size_demands_others(completed, size, nodes, memory, changed):
    found = completed(size, memory, nodes=nodes)

    assert chosen(found) == USUAL | changed
    because = {choice.field.removeprefix("spec.resources."): choice.because for choice in found.choices}
    assert all(("would" in because[field]) == (field in changed) for field in because), because
    require_fit(found.estimate, found.sizes)


@pytest.mark.parametrize(("gpus", "offload"), [(8, "none"), (6, "optimizer"), (4, "all")])
def test_more_is_offloaded_the_fewer_gpus_there_are_for_a_policy_and_a_critic(completed, gpus, offload):
    found = completed("14B", 80, base=job, train={"gpusPerNode": gpus})

    assert chosen(found)["train.offload"] == offload


def test_what_the_job_gives_is_kept_wherever_it_gives_it(completed):
    verl = {"actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 9000, "actor_rollout_ref": {"rollout": {
        "gpu_memory_utilization": 0.35}}}  # fmt: skip

    found = completed("7B", 80, verl=verl, train={"offload": "optimizer"}, rollout={"tensorParallel": 2})

    assert found.choices == ()
    assert found.job.spec.resources.rollout.tensor_parallel == 2
    cache = next(part for part in found.estimate.phases[-1].parts if part.name.startswith("engine: cache"))
    assert cache.gib < 0.35 * 80


def test_engines_on_gpus_of_their_own_keep_their_number_of_gpus(completed):
    found = completed("14B", 80, training__mode="separate_async")

    assert chosen(found).keys() == {"train.offload", "train.microBatchTokens"}


def test_nothing_is_chosen_for_gpus_whose_memory_is_not_known(completed):
    found = completed("7B", None)

    assert found.choices == ()
    assert found.job.spec.resources.train.offload is None


def test_a_job_that_does_not_fit_has_the_settings_that_take_least(completed):
    found = completed("70B", 40)

    assert chosen(found) == {"train.offload": "all", "train.microBatchTokens": 2048, "rollout.tensorParallel": 8,
                             "rollout.gpuMemoryShare": 0.3}  # fmt: skip
    assert {choice.because for choice in found.choices} == {"nothing fits"}
    with pytest.raises(SettingsError, match="learning"):
        require_fit(found.estimate, found.sizes)


def test_what_cannot_fit_is_known_from_the_shortest_micro_batches(completed, monkeypatch):
    asked: set[int] = set()
    activation_bytes = QuickModel.activation_bytes

    def recorded(model: QuickModel, tokens: int, **options: bool) -> int:
        asked.add(tokens)
        return activation_bytes(model, tokens, **options)

    monkeypatch.setattr(QuickModel, "activation_bytes", recorded)

    assert {choice.because for choice in completed("70B", 40).choices} == {"nothing fits"}
    assert asked == {2048}
