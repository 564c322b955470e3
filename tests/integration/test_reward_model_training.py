"""Runs whose rewards a second model gives, which they serve themselves: as a score, and as a judge's verdict."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoTokenizer, Qwen2ForCausalLM, Qwen2ForSequenceClassification

from support.training_runs import TrainingRun
from turnmill.jobs.model import WarmStart
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog
from turnmill.training.warm_start.cloning import build_model
from turnmill.training.warm_start.tokenizer import build_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]


NUMBERS = 6


def save_policy(folder: Path) -> Path:
    """Write a model with random weights that knows small numbers by name."""
    tokenizer = build_tokenizer([*(f" {n}" for n in range(2 * NUMBERS)), " what is plus", "\n"])
    build_model(len(tokenizer), WarmStart()).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_scorer(folder: Path, policy: Path) -> Path:
    """Write a reward model with random weights and one output, of a policy's tokens."""
    tokenizer = AutoTokenizer.from_pretrained(policy)
    config = Qwen2ForCausalLM.from_pretrained(policy).config
    config.num_labels = 1
    # Otherwise scores of random weights hardly differ.
    config.initializer_range = 1.0
    torch.manual_seed(0)
    Qwen2ForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_judge(folder: Path, policy: Path, verdict: str) -> Path:
    """Write a model that answers everything with one token again and again."""
    tokenizer = AutoTokenizer.from_pretrained(policy)
    model = Qwen2ForCausalLM.from_pretrained(policy)
    model.config.tie_word_embeddings = False
    model = Qwen2ForCausalLM(model.config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Layers that add nothing to what each token brings, which is the same for all.
            weight.fill_(0.0 if name.endswith(("o_proj.weight", "down_proj.weight", "lm_head.weight")) else 1.0)
        model.lm_head.weight[tokenizer.convert_tokens_to_ids(verdict)] = 1.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def job(tmp_path: Path, *, reward: str, reward_model: Path) -> Path:
    data = tmp_path / "sums.jsonl"
    rows = [{"prompt": f" what is {a} plus {b}", "answer": str(a + b)} for a in range(NUMBERS) for b in range(NUMBERS)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {
        "model": {"path": str(tmp_path / "policy")},
        "agent": {"type": "tool", "enableAgent": False, "groupSize": 4, "maxPromptLength": 32, "maxResponseLength": 8},
        "environment": {"name": "dataset", "options": {"path": str(data), "validationTasks": 4, "reward": reward}},
        "rewardModel": {"path": str(reward_model)},
        "algorithm": {"type": "grpo", "minibatchTasks": 4},
        "training": {"steps": 1, "tasksPerStep": 4, "validation": {"episodes": 4}},
        "resources": {"device": "cpu"},
    }
    file = tmp_path / "job.yaml"
    named = {"apiVersion": "turnmill.dev/v1alpha1", "kind": "AgentTrainingJob", "metadata": {"name": "rewarded"}}
    file.write_text(yaml.safe_dump({**named, "spec": spec}))
    return file


def test_rewards_are_the_scores_of_a_model_whose_server_dies_and_starts_again(tmp_path):
    policy = save_policy(tmp_path / "policy")
    scorer = save_scorer(tmp_path / "scorer", policy)

    with TrainingRun(job(tmp_path, reward="reward_model", reward_model=scorer), tmp_path / "run") as run:
        folder = RunFolder(run.folder)
        attempt = run.start()
        attempt.wait_for(folder.reward_model.exists)
        assert folder.reward_model.stat().st_mode & 0o077 == 0
        attempt.kill_processes("--served-model-name reward-model")
        attempt.wait()

    turns = list(TrajectoryLog(folder).read_turns(validation=False))
    assert len(turns) == 16
    tokenizer, model = AutoTokenizer.from_pretrained(scorer), Qwen2ForSequenceClassification.from_pretrained(scorer)
    for turn in turns:
        question = turn.prompt.removeprefix("<usr>").removesuffix("<|im_end|><ast>")
        response = tokenizer.decode(turn.response_ids, skip_special_tokens=True)
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": response}]
        tokens = tokenizer.apply_chat_template(messages, return_tensors="pt", return_dict=True)
        with torch.no_grad():
            assert turn.reward == pytest.approx(model(**tokens).logits.item(), abs=1e-3)
    assert len({turn.reward for turn in turns}) > 1
    assert {turn.failed_cause for turn in turns} == {None}
    assert not folder.reward_model.exists()


def test_a_judge_without_an_address_is_the_model_that_the_run_serves(tmp_path):
    policy = save_policy(tmp_path / "policy")
    judge = save_judge(tmp_path / "judge", policy, " 7")
    file = job(tmp_path, reward="judge", reward_model=judge)
    settings = "environment.options.judge={prompt: ' what is {answer}', score: ' *([0-9])', maxTokens: 4}"

    with TrainingRun(file, tmp_path / "run") as run:
        run.train("--set", settings)

    turns = list(TrajectoryLog(RunFolder(run.folder)).read_turns(validation=False))
    assert len(turns) == 16
    assert {turn.reward for turn in turns} == {0.7}
