from pathlib import Path

import pytest
import yaml

from turnmill.cli.main import main
from turnmill.conversion.verl_tool import AGENT, convert
from turnmill.jobs.validation import validate

SCRIPT = [
    "-m",
    "verl_tool.trainer.main_ppo",
    "algorithm.adv_estimator=grpo",
    "data.train_files=train.parquet",
    "data.train_batch_size=128",
    "data.max_prompt_length=1024",
    "data.max_response_length=3072",
    "reward_model.reward_manager=torl",
    "reward_model.launch_reward_fn_async=True",
    "actor_rollout_ref.model.path=/models/small",
    f"{AGENT}.enable_agent=True",
    f"{AGENT}.tool_server_url=http://127.0.0.1:30000/get_observation",
    f"{AGENT}.max_turns=10",
    f"{AGENT}.val_max_turns=0",
    f"{AGENT}.max_obs_length=512",
    f"{AGENT}.additional_eos_token_ids=[151645]",
    f"{AGENT}.train_max_response_length=3072",
    "+actor_rollout_ref.agent.retokenization=True",
    f"{AGENT}.nonsense=True",
    "actor_rollout_ref.rollout.n=16",
    "critic.model.fsdp_config.fsdp_size=-1",
    "trainer.total_training_steps=5",
]


@pytest.mark.feature("verl-tool", "conversion of a command line")
def test_a_command_line_of_verl_tool_becomes_a_job(tmp_path: Path):
    tokens = tmp_path / "tokens"
    tokens.write_text("```output,</answer>")

    found = convert([*SCRIPT, f"{AGENT}.action_stop_tokens={tokens}"], tool_type="ipython_code,sql")

    spec = found.data["spec"]
    assert spec["agent"] == {
        "type": "tool",
        "toolType": "ipython_code,sql",
        "stopTokens": ["```output", "</answer>"],
        "maxPromptLength": 1024,
        "maxResponseLength": 3072,
        "enableAgent": True,
        "maxTurns": 10,
        "maxObsLength": 512,
        "additionalEosTokenIds": [151645],
        "retokenization": True,
        "groupSize": 16,
    }
    assert spec["environment"]["options"] == {"reward": "math_verify", "path": "train.parquet"}
    assert spec["training"] == {"tasksPerStep": 128, "steps": 5}
    job, problems = validate(found.data)
    assert (job is not None, problems) == (True, [])
    assert dict(note.split(": ", 1) for note in found.notes) == {
        "reward_model.launch_reward_fn_async": "rewards are always computed beside the rollout.",
        f"{AGENT}.train_max_response_length": "set spec.agent.maxResponseLength.",
        f"{AGENT}.nonsense": "verl has no such setting.",
        "critic.fsdp.fsdp_size": "the algorithm grpo has no critic.",
    }


def test_the_server_of_the_script_is_kept_unless_the_run_starts_one():
    found = convert(SCRIPT)

    assert found.data["spec"]["agent"]["toolServerUrl"] == "http://127.0.0.1:30000/get_observation"
    assert any("with --tool-type TOOLS the run starts one" in note for note in found.notes)


def test_a_reward_manager_of_verl_tools_own_has_a_sentence_and_an_empty_file_no_stop_tokens(tmp_path: Path):
    (tmp_path / "none").write_text("")
    words = [word.replace("=torl", "=acecoder") for word in SCRIPT]

    found = convert([*words, f"{AGENT}.action_stop_tokens={tmp_path}/none"])

    assert any(note.startswith("reward_model.reward_manager: acecoder is a class") for note in found.notes)
    assert found.data["spec"]["environment"]["options"]["reward"] == "verl"
    assert found.data["spec"]["agent"]["actionStopTokens"] == ""


def test_grpo_with_filtered_groups_is_dapo():
    given = ["enable=True", "metric=seq_final_reward", "max_num_gen_batches=0"]

    found = convert([*SCRIPT, f"{AGENT}.min_turns=1", *(f"+algorithm.filter_groups.{each}" for each in given)])

    assert found.data["spec"]["algorithm"] == {
        "type": "dapo",
        "clipRatioHigh": 0.2,
        "dynamicSampling": {"maxBatches": 1000},
    }
    job, problems = validate(found.data)
    assert (job is not None, problems) == (True, [])


def test_the_command_prints_a_job(capsys):
    assert main(["convert", "verl-tool", "--tool-type", "sql", *SCRIPT]) == 0

    assert yaml.safe_load(capsys.readouterr().out)["spec"]["agent"]["toolType"] == "sql"
