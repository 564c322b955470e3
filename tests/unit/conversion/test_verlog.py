import pytest
import yaml

from turnmill.cli.main import main
from turnmill.conversion.verlog import convert
from turnmill.core.errors import SettingsError
from turnmill.jobs.validation import validate

SCRIPT = [
    "-m",
    "verl.trainer.main_ppo",
    "data.max_prompt_length=1024",
    "data.train_batch_size=256",
    "actor_rollout_ref.actor.ppo_mini_batch_size=128",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.model.path=/models/small",
    "critic.model.path=/models/other",
    "critic.highlight_first=True",
    "critic.highlight_ratio=3.0",
    "algorithm.step_gamma=0.9",
    "algorithm.use_kl_in_reward=True",
    "algorithm.kl_ctrl.kl_coef=0.001",
    "envs.n_rollouts=32",
    "envs.env_name=babaisai",
    "envs.task=env/goto_win",
    "envs.captioner.type=cot",
    "envs.captioner.max_text_history=2",
    "envs.babaisai_kwargs.add_ruleset=True",
    "trainer.critic_warmup=40",
    "trainer.critic_warmup_step=5",
    "trainer.save_freq=1000000",
    "trainer.test_freq=30",
    "trainer.total_epochs=300",
    "data.train_files=placeholder.parquet",
]


@pytest.mark.feature("Verlog", "conversion of a command line")
def test_a_command_line_of_verlog_becomes_a_job():
    spec = convert(SCRIPT).data["spec"]

    assert spec["agent"] == {
        "type": "verlog",
        "prompt": "cot_actions",
        "maxTurns": 100,
        "maxPromptTokens": 1024,
        "memory": {"textTurns": 2},
    }
    assert spec["environment"] == {
        "name": "babaisai",
        "task": "goto_win",
        "success": "total_reward",
        "count": 32,
        "binaryReward": False,
        "invalidPenalty": 0.0,
    }
    assert spec["algorithm"] == {
        "type": "turn_ppo",
        "stepGamma": 0.9,
        "stepLambda": 1.0,
        "minibatchTurns": 128,
        "criticWarmup": {"batches": 40, "steps": 5},
        "firstTokenValueWeight": 3.0,
        "kl": {"coefficient": 0.001},
    }
    assert spec["training"] == {
        "turnsPerStep": 256,
        "steps": 295,
        "checkpointEvery": 295,
        "validation": {"every": 30, "episodes": 32},
    }
    assert "verl" not in spec


@pytest.mark.feature("Verlog", "conversion of a command line")
def test_what_has_no_place_in_the_job_has_a_sentence():
    assert dict(note.split(": ", 1) for note in convert(SCRIPT).notes) == {
        "critic.model.path": "the critic starts from the policy's model, spec.model.path.",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": (
            "micro-batches are filled up to spec.resources.train.microBatchTokens."
        ),
        "data.train_files": "there is no data set: its file is a placeholder.",
        "envs.babaisai_kwargs.add_ruleset": (
            "there is no such option here; spec.environment.options has those of the environment."
        ),
    }


def test_what_nobody_sets_has_verlogs_own_value():
    spec = convert(["actor_rollout_ref.model.path=/models/small", "data.train_batch_size=64"]).data["spec"]

    assert (spec["agent"]["prompt"], spec["environment"]["name"], spec["environment"]["task"]) == (
        "naive",
        "babyai",
        "goto",
    )
    assert (spec["environment"]["count"], spec["agent"]["maxTurns"]) == (16, 128)
    assert spec["algorithm"]["firstTokenValueWeight"] == 1.0
    assert spec["algorithm"]["kl"] == {"coefficient": 0}
    assert spec["training"]["steps"] == 30


@pytest.mark.parametrize(
    ("given", "steps"), [(["trainer.val_only=True"], 0), (["trainer.total_training_steps=7"], 2), ([], 295)]
)
def test_steps_are_those_after_the_warm_up(given: list[str], steps: int):
    assert convert([*SCRIPT, *given]).data["spec"]["training"]["steps"] == steps


def test_the_converted_job_is_valid():
    job, problems = validate(convert(SCRIPT).data)

    assert (job is not None, problems) == (True, [])


@pytest.mark.parametrize(
    ("words", "message"),
    [(["envs.env_name=chess"], "Verlog has no environment 'chess'"), (["trainer.total_epochs=many"], "whole number")],
)
def test_what_verlog_does_not_have_is_refused(words: list[str], message: str):
    with pytest.raises(SettingsError, match=message):
        convert(words)


def test_the_command_writes_the_job_to_a_file(tmp_path, capsys):
    file = tmp_path / "job.yaml"

    assert main(["convert", "verlog", "--output", str(file), "--steps", "3", *SCRIPT]) == 0

    assert yaml.safe_load(file.read_text())["spec"]["training"]["steps"] == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "critic.model.path: the critic starts" in printed.err
