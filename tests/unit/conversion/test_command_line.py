from pathlib import Path

import pytest

from turnmill.conversion.command_line import read_settings
from turnmill.core.errors import SettingsError

FILE = """
hydra: {searchpath: [file://verl/trainer/config]}
defaults: [ppo_trainer, _self_]
data: {max_prompt_length: 1024}
actor_rollout_ref: {rollout: {name: sglang, multi_turn: {enable: true}}}
"""


@pytest.mark.feature("verl's multi-turn", "conversion of a command line")
@pytest.mark.parametrize(
    "words", [["--config-path={}", "--config-name=own"], ["--config-path", "{}", "--config-name", "own.yaml"]]
)
def test_the_settings_of_the_named_file_are_below_those_of_the_command_line(tmp_path: Path, words: list[str]):
    (tmp_path / "own.yaml").write_text(FILE)

    given = read_settings([*(word.format(tmp_path) for word in words), "data.max_prompt_length=2", "critic.x=null"])

    assert given == {
        "data.max_prompt_length": 2,
        "actor_rollout_ref.rollout.name": "sglang",
        "actor_rollout_ref.rollout.multi_turn.enable": True,
    }


@pytest.mark.parametrize(
    "words",
    [
        ["--config-name=ppo_megatron_trainer.yaml"],
        ["--config-path=.", "--config-name=own"],
        ["actor_rollout_ref.actor.strategy=megatron", "critic.strategy=megatron"],
    ],
)
def test_megatron_is_named_by_the_file_or_by_the_strategy(tmp_path: Path, words: list[str], monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text("defaults: [ppo_megatron_trainer]\ndata: {x: null}\n")

    assert read_settings(words) == {"model_engine": "megatron"}


def test_a_file_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"own\.yaml cannot be read"):
        read_settings([f"--config-path={tmp_path}", "--config-name=own", "data.x=1"])
