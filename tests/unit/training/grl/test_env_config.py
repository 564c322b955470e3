import pytest

from turnmill.training.grl.env_config import here


@pytest.mark.feature("GRL", "its own configuration files")
@pytest.mark.parametrize(
    ("agent_type", "given", "expected"),
    [
        ("sokobanAgent", {"max_steps": 100, "render_mode": "text"}, {"max_steps": 100}),
        ("sokobanAgent", {"render_mode": "rgb_array"}, {"render_mode": "rgb_array"}),
        ("tetrisAgent", {"dim_x": 4, "max_steps": 100, "render_mode": "text"}, {"dim_x": 4}),
        ("blocksworldAgent", {"num_blocks": 3, "max_steps": 9, "render_mode": "1d"}, {"num_blocks": 3, "view": "1d"}),
        ("gsm8kAgent", {"dataset_path": "openai/gsm8k", "split": "train"}, {"path": "openai/gsm8k"}),
        ("gsm8kAgent", {"split": "test"}, {"split": "test"}),
        ("birdAgent", {"db_root": "d", "step_timeout_seconds": 180}, {"databases": "d", "queryTimeoutSeconds": 180}),
        ("webshopAgent", {"server": "None", "limit_goals": -1, "human_goals": True}, {"human_goals": True}),
        ("package.module:Own", {"max_steps": 1, "render_mode": "text"}, {"max_steps": 1, "render_mode": "text"}),
    ],
)
def test_settings_of_grls_own_agents_have_the_names_of_the_environments_here(agent_type, given, expected):
    assert here(agent_type, given) == expected
