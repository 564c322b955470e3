import pytest
import yaml

from turnmill.cli.main import main
from turnmill.conversion.verl import FIELDS, convert
from turnmill.core.errors import SettingsError
from turnmill.jobs.validation import validate
from turnmill.training.verl.config import compose_defaults
from turnmill.training.verl.known_settings import unknown_names

SCRIPT = [
    "python3",
    "-m",
    "verl.trainer.main_ppo",
    "--config-path=config",
    "algorithm.adv_estimator=grpo",
    "data.train_files=/data/train.parquet",
    "data.val_files=['/data/test.parquet']",
    "data.train_batch_size=256",
    "data.max_prompt_length=1024",
    "data.max_response_length=2048",
    "data.truncation='error'",
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-3B-Instruct",
    "actor_rollout_ref.actor.optim.lr=1e-6",
    "actor_rollout_ref.actor.ppo_mini_batch_size=128",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32",
    "actor_rollout_ref.actor.use_kl_loss=True",
    "actor_rollout_ref.actor.kl_loss_coef=0.002",
    "actor_rollout_ref.rollout.name=sglang",
    "actor_rollout_ref.rollout.n=16",
    "+actor_rollout_ref.rollout.max_model_len=9000",
    "actor_rollout_ref.rollout.multi_turn.enable=True",
    "actor_rollout_ref.rollout.multi_turn.max_assistant_turns=5",
    "actor_rollout_ref.rollout.multi_turn.tool_config_path=tools.yaml",
    "actor_rollout_ref.rollout.top_p=0.9",
    "custom_reward_function.path=reward.py",
    "algorithm.gamma=1.0",
    "trainer.critic_warmup=0",
    'trainer.logger=["console","wandb"]',
    "trainer.experiment_name=Qwen_3B",
    "trainer.n_gpus_per_node=8",
    "trainer.nnodes=2",
    "trainer.save_freq=-1",
    "trainer.test_freq=20",
    "trainer.total_training_steps=300",
    "trainer.nonsens=1",
]


@pytest.mark.feature("verl's multi-turn", "an evaluation alone")
def test_a_command_line_that_only_validates_becomes_a_job_without_steps():
    words = [word for word in SCRIPT if not word.startswith("trainer.total")]

    spec = convert([*words, "trainer.val_only=True"]).data["spec"]

    assert spec["training"] == {"tasksPerStep": 256, "steps": 0}
    job, problems = validate(convert([*words, "trainer.val_only=True"]).data)
    assert job is not None, problems
    assert convert([*SCRIPT, "trainer.val_only=False"]).data["spec"]["training"]["steps"] == 300


def test_filtering_overlong_prompts_is_a_field_of_the_agent():
    assert (
        convert([*SCRIPT, "data.filter_overlong_prompts=True"]).data["spec"]["agent"]["filterOverlongPrompts"] is True
    )


@pytest.mark.feature("verl's multi-turn", "conversion of a command line")
def test_a_command_line_of_verl_becomes_a_job():
    found = convert(SCRIPT)

    spec = found.data["spec"]
    assert found.data["metadata"]["name"] == "qwen-3b"
    assert spec["agent"] == {
        "type": "multi_turn",
        "maxPromptLength": 1024,
        "maxResponseLength": 2048,
        "groupSize": 16,
        "maxAssistantTurns": 5,
        "toolConfigPath": "tools.yaml",
    }
    assert spec["environment"]["options"] == {
        "reward": "verl:reward.py:compute_score",
        "path": "/data/train.parquet",
        "validationPath": "/data/test.parquet",
    }
    assert spec["algorithm"] == {
        "type": "grpo",
        "actorLearningRate": 1e-6,
        "minibatchTasks": 128,
        "kl": {"in": "loss", "coefficient": 0.002},
    }
    assert spec["training"] == {
        "tasksPerStep": 256,
        "steps": 300,
        "checkpointEvery": 300,
        "validation": {"every": 20},
    }
    assert spec["verl"] == {
        "actor_rollout_ref.rollout.max_model_len": 9000,
        "actor_rollout_ref.rollout.top_p": 0.9,
    }


@pytest.mark.feature("verl's multi-turn", "conversion of a command line")
def test_every_setting_without_a_place_in_the_job_has_a_sentence():
    notes = dict(note.split(": ", 1) for note in convert(SCRIPT).notes)

    assert notes == {
        "algorithm.gamma": "the algorithm grpo does not use it.",
        "actor_rollout_ref.rollout.name": (
            "sglang is not supported: weight sync, restarts of engines, metrics and the CPU path are made for vLLM. "
            "The job runs with vLLM."
        ),
        "data.truncation": "Longer prompts lose their beginning; set spec.agent.maxPromptLength.",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": (
            "micro-batches are filled up to spec.resources.train.microBatchTokens."
        ),
        "trainer.nonsens": "verl has no such setting.",
    }


def test_the_converted_job_is_valid():
    job, problems = validate(convert(SCRIPT).data)

    assert (job is not None, problems) == (True, [])


def test_without_tools_a_trajectory_is_one_response():
    found = convert(["data.train_files=x.parquet", "trainer.total_training_steps=3", "algorithm.adv_estimator=rloo"])

    assert found.data["spec"]["agent"] == {"type": "multi_turn", "defaultAgentLoop": "single_turn_agent"}
    assert found.data["spec"]["algorithm"] == {"type": "rloo", "kl": {"coefficient": 0}}


@pytest.mark.parametrize(
    ("enable", "path"),
    [
        ("reward.reward_model.enable", "reward.reward_model.model_path"),
        ("reward_model.enable", "reward_model.model.path"),
    ],
)
def test_a_reward_model_has_a_section_of_its_own(enable: str, path: str):
    words = ["data.train_files=x.parquet", "trainer.total_training_steps=3", f"{path}=/models/reward"]

    served, alone = convert([*words, f"{enable}=True"]), convert([*words[:2], f"{enable}=False"])

    assert served.data["spec"]["rewardModel"] == {"path": "/models/reward"}
    assert served.data["spec"]["environment"]["options"]["reward"] == "reward_model"
    assert alone.data["spec"]["environment"]["options"]["reward"] == "verl"


def test_the_steps_of_epochs_are_counted_in_the_file(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1?"}\n' * 10)

    found = convert([f"data.train_files={tmp_path}/rows.jsonl", "data.train_batch_size=4", "trainer.total_epochs=3"])

    assert found.data["spec"]["training"]["steps"] == 6


def test_steps_that_cannot_be_counted_must_be_given():
    with pytest.raises(SettingsError, match="Give the number of steps with --steps"):
        convert(["trainer.total_epochs=3"])
    assert convert(["trainer.total_epochs=3"], steps=7).data["spec"]["training"]["steps"] == 7


def test_a_number_of_steps_that_only_the_shell_knows_must_be_given():
    with pytest.raises(SettingsError, match="Give the number of steps with --steps"):
        convert(["trainer.total_training_steps=$STEPS"])


def test_every_converted_name_is_a_setting_of_verl():
    documented = {"actor_rollout_ref.rollout.tool_kwargs.tools_config_file"}
    # A section of DAPO's recipe, which verl's own files leave empty.
    documented |= {name for name in FIELDS if name.startswith("algorithm.filter_groups.")}

    given = dict.fromkeys(FIELDS.keys() - documented, 1)
    unknown = [{name for name, _ in unknown_names(compose_defaults(engine), given)} for engine in ("fsdp", "megatron")]
    assert set.intersection(*unknown) == set()


def test_the_command_prints_the_job_and_its_notes_apart(capsys):
    assert main(["convert", "verl", "trainer.total_training_steps=2", "data.truncation=left", "--steps", "5"]) == 0

    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out)["spec"]["training"] == {"steps": 5}
    assert "data.truncation: Longer prompts lose their beginning" in printed.err
