from pathlib import Path

import pytest

from support.jobs import sft_job
from turnmill.core.errors import SettingsError
from turnmill.jobs import AgentTrainingJob, parse_job
from turnmill.training.sft.config import build_sft_config, micro_batch_tokens, unknown_engine_settings
from turnmill.training.sft.fine_tuned_model import fine_tuning_job

MODEL = Path("/models/tiny")


def parsed(**changes: object) -> AgentTrainingJob:
    return parse_job(sft_job(**changes))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_setting_of_the_job_is_one_that_verl_has(device: str):
    job = parsed(
        algorithm__learningRate=0.25,
        algorithm__learningRateSchedule="cosine",
        algorithm__adamBetas=[0.5, 0.75],
        model__lora={"rank": 4, "alpha": 8, "targetModules": ["q_proj"]},
        training__seed=7,
        resources__train={"offload": "optimizer"},
    )

    config = build_sft_config(job, model=MODEL, device=device, steps=12)

    assert (config.optim.lr, config.optim.lr_scheduler_type, list(config.optim.betas)) == (0.25, "cosine", [0.5, 0.75])
    assert config.optim.total_training_steps == 12
    assert (config.model.path, config.model.lora_rank, list(config.model.target_modules)) == (str(MODEL), 4, ["q_proj"])
    assert (config.engine.strategy, config.engine.seed) == ("fsdp2", 7)
    assert config.engine.optimizer_offload == (device == "cuda")
    assert config.model.use_remove_padding == (device == "cuda")
    names = ("model.use_fused_kernels", "engine.mixed_precision.param_dtype", "engine.ulysses_sequence_parallel_size")
    assert unknown_engine_settings(dict.fromkeys(names, 1)) == []


def test_settings_of_verl_override_those_of_the_job_and_unknown_ones_are_refused():
    job = parsed(verl={"optim.lr": 0.5, "optim": {"lr_warmup_steps_ratio": 0.1}})

    config = build_sft_config(job, model=MODEL, device="cpu", steps=3)

    assert (config.optim.lr, config.optim.lr_warmup_steps_ratio, config.optim.total_training_steps) == (0.5, 0.1, 3)
    with pytest.raises(SettingsError, match="no setting of verl's engine for fine-tuning"):
        build_sft_config(parsed(verl={"data.max_length": 3}), model=MODEL, device="cpu", steps=1)


def test_a_micro_batch_has_room_for_the_longest_row():
    long = parsed(algorithm__maxLength=50_000, resources__train={"sequenceParallel": 2, "microBatchTokens": 100})

    assert micro_batch_tokens(parsed(), "cuda") == 8192
    assert micro_batch_tokens(long, "cpu") == 50_000
    assert micro_batch_tokens(long, "cuda") == 25_000


def test_sequence_parallelism_on_gpus_needs_flash_attention(monkeypatch: pytest.MonkeyPatch):
    job = parsed(resources__train={"sequenceParallel": 2})
    installed = "turnmill.training.verl.attention.find_spec"

    monkeypatch.setattr(installed, lambda _: None)
    with pytest.raises(SettingsError, match="needs flash attention"):
        build_sft_config(job, model=MODEL, device="cuda", steps=1)
    assert build_sft_config(job, model=MODEL, device="cpu", steps=1).engine.ulysses_sequence_parallel_size == 1

    monkeypatch.setattr(installed, lambda name: name)
    assert build_sft_config(job, model=MODEL, device="cuda", steps=1).engine.ulysses_sequence_parallel_size == 2


def test_a_fine_tuning_before_the_training_is_a_job_of_its_own():
    job = parse_job(
        sft_job(
            model__fineTune={"data": "/d.jsonl", "epochs": 3, "seed": 5, "batchSize": 4},
            model__lora={},
            agent={"type": "tool", "stopTokens": ["</a>"]},
            environment={"name": "arithmetic"},
            algorithm={"type": "grpo"},
            training={"steps": 2, "tasksPerStep": 4, "mode": "separate_async"},
            verl={"actor_rollout_ref.model.trust_remote_code": True, "actor_rollout_ref.rollout.top_p": 0.5},
        )
    )

    own = fine_tuning_job(job, MODEL).spec

    assert own.fine_tuning is not None
    assert (own.fine_tuning.data, own.fine_tuning.epochs, own.fine_tuning.batch_size) == ("/d.jsonl", 3, 4)
    assert (own.model.path, own.model.fine_tune, own.model.lora) == (str(MODEL), None, job.spec.model.lora)
    assert (own.training.seed, own.training.mode) == (5, "sync")
    assert own.verl == {"model.trust_remote_code": True}
    assert own.resources == job.spec.resources
