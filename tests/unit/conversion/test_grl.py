from pathlib import Path

import pytest
import yaml

from turnmill.cli.main import main
from turnmill.conversion.grl import convert
from turnmill.core.errors import SettingsError
from turnmill.jobs.validation import validate

BASE = """
defaults: [agents, ppo_trainer, _self_]
model_path: /models/small
actor_rollout_ref: {model: {path: "${model_path}"}}
algorithm: {adv_estimator: gae}
rollout: {training: [boxes], agent_group_num: [2], agent_group_size: [4], validation: [boxes]}
trainer: {total_training_steps: 200}
"""
AGENTS = """
boxes:
  agent_type: sokobanAgent
  agent_config: {max_turns: 2}
  env_config: {dim_room: [6, 6], render_mode: text}
"""


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "base.yaml").write_text(BASE)
    (folder / "agents.yaml").write_text(AGENTS)
    return folder


@pytest.mark.feature("GRL", "its own configuration files")
@pytest.mark.parametrize("by_path", [True, False])
def test_a_command_line_of_grl_becomes_a_job(configs: Path, by_path: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(configs.parent)
    file = ["configs/base.yaml"] if by_path else ["grl/train.py", "--config-name", "base"]

    found = convert([*file, "model_path=/models/other", 'rollout.training=["boxes"]', "+trainer.save_freq=10"])

    spec = found.data["spec"]
    assert spec["model"]["path"] == "/models/other"
    assert spec["agent"]["agents"][0]["envConfig"] == {"dim_room": [6, 6]}
    assert (spec["training"]["steps"], spec["training"]["checkpointEvery"]) == (200, 10)
    job, problems = validate(found.data)
    assert (job is not None, problems) == (True, [])


def test_a_command_line_without_a_file_is_refused():
    with pytest.raises(SettingsError, match="Give --config-name base"):
        convert(["model_path=x"])


def test_the_command_takes_the_number_of_steps(configs: Path, capsys):
    assert main(["convert", "grl", f"--config-path={configs}", "--config-name=base", "--steps", "3"]) == 0

    assert yaml.safe_load(capsys.readouterr().out)["spec"]["training"]["steps"] == 3
