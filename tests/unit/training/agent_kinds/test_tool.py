"""What `turnmill check` finds in jobs of agents with tools."""

from pathlib import Path

import pytest

from turnmill.cli import checks
from turnmill.jobs import JobError, load_job
from turnmill.training.agent_kinds.tool import ToolKind

EXAMPLE = Path(__file__).parents[4] / "manifests" / "examples" / "tool-arithmetic-cpu.yaml"


def problems(*overrides: str) -> list[str]:
    try:
        load_job(EXAMPLE, overrides, checks=[checks.agent])
    except JobError as error:
        return [str(problem).removesuffix(" (--set)") for problem in error.problems]
    return []


@pytest.mark.feature("verl-tool", "a tool that is missing")
def test_tools_that_cannot_be_served_are_reported_before_the_run(monkeypatch):
    monkeypatch.delenv("SERPER_API_KEY", raising=False)

    unknown, keyless = problems("agent.toolType=pythn_code,google_search,base")

    assert unknown.startswith(
        "spec.agent.toolType: 'pythn_code' cannot be served: There is no tool 'pythn_code'. Did you mean 'python_code'"
    )
    assert keyless == (
        "spec.agent.toolType: 'google_search' cannot be served: google_search: SERPER_API_KEY is missing: set it to a "
        "key of serper.dev. Give what it needs, in spec.agent.toolServer.settings or the environment, or leave it out."
    )


@pytest.mark.parametrize(
    "override",
    [
        "agent.toolServer={settings: {SERPER_API_KEY: secret}}",
        "agent.toolServer={allowMissingTools: true}",
        "agent.toolServerUrl=http://tools:5000",
        "agent.enableAgent=false",
    ],
)
def test_tools_are_not_reported_if_they_are_complete_or_not_needed(monkeypatch, override):
    monkeypatch.delenv("SERPER_API_KEY", raising=False)

    assert problems("agent.toolType=google_search", override) == []


def test_a_tool_whose_package_is_not_installed_is_reported(tmp_path):
    (tmp_path / "greedy.py").write_text(
        "from turnmill.tools.base import Tool\n"
        "from turnmill.tools.registry import register\n"
        "@register\n"
        "class Greedy(Tool):\n"
        "    name = 'greedy'\n"
        "    requires = ('no-such-package',)\n"
    )

    (problem,) = problems("agent.toolType=greedy", f"agent.toolServer={{settings: {{TOOLS_FOLDER: {tmp_path}}}}}")

    assert "The tool 'greedy' needs no-such-package, which is not installed here" in problem


@pytest.mark.parametrize(
    ("override", "tools"),
    [
        ("agent.toolType=base,finish", "base,finish"),
        ("agent.toolServerUrl=http://tools:5000", None),
        ("agent.enableAgent=false", None),
    ],
)
def test_a_run_serves_its_tools_itself_unless_it_has_none_or_another_server(override, tools):
    kind = ToolKind(load_job(EXAMPLE, [override]).spec.agent)

    assert kind.tools_to_serve() == tools


def test_a_list_without_tools_is_reported():
    assert problems("agent.toolType=','") == ["spec.agent.toolType: ',' names no tool. Write for example python_code."]


def test_flags_of_the_runs_own_server_are_refused_beside_the_address_of_others():
    (problem,) = problems("agent.toolServerUrl=http://tools:5000", "agent.toolServer={doneIfInvalid: true}")

    assert problem.startswith("spec.agent.toolServer: is for the server that a run starts itself.")


@pytest.mark.feature("verl-tool", "stop tokens from a file")
def test_a_missing_file_of_stop_tokens_is_reported():
    (problem,) = problems("agent.stopTokens=[]", "agent.actionStopTokens=/no/such/tokens.txt")

    assert problem.startswith("spec.agent.actionStopTokens: '/no/such/tokens.txt' cannot be read: ")


def test_a_separator_without_a_place_for_the_observation_is_reported():
    assert problems("agent.enableMtrl=true", "agent.mtrlSep='<call>'") == [
        "spec.agent.mtrlSep: '<call>' has no placeholder {obs} for the observation. "
        "Add it; tokens that call a tool go into spec.agent.stopTokens."
    ]


@pytest.mark.feature("verl-tool", "observations with pictures and sound")
def test_a_tool_that_returns_images_to_a_model_for_text_is_reported(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen2", "num_hidden_layers": 2}')

    for model in ((), ("model.warmStart=null", f"model.path={tmp_path}")):
        found = problems("agent.toolType=base,pixel_reasoner", *model)

        assert found[-1] == (
            "spec.agent.toolType: 'pixel_reasoner' returns images, and the model accepts only text. "
            "Give a multi-modal model as spec.model.path, such as Qwen/Qwen2.5-VL-3B-Instruct."
        )


@pytest.mark.parametrize(
    "config", ['{"model_type": "qwen2_5_vl", "vision_config": {}}', None, "no JSON"], ids=["vision", "absent", "broken"]
)
def test_images_are_not_refused_for_a_model_that_takes_them_or_is_elsewhere(tmp_path, config):
    if config is not None:
        (tmp_path / "config.json").write_text(config)

    found = problems("agent.toolType=pixel_reasoner", "model.warmStart=null", f"model.path={tmp_path}")

    assert not any("returns images" in problem for problem in found)
