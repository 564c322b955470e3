import sys
from pathlib import Path

import pytest
from verl.tools.tool_registry import get_tool_class

from turnmill.rollout.multi_turn.example_tools.search import SearchTool
from turnmill.rollout.multi_turn.removed_tools import HERE, missing_classes, offer_removed_tools

FILE = """
tools:
  - {class_name: verl.tools.gsm8k_tool.Gsm8kTool, config: {type: native}}
  - {class_name: verl.tools.geo3k_tool.Geo3kTool, config: {type: native}}
  - {class_name: verl.tools.mcp_search_tool.MCPSearchTool, config: {type: mcp}}
  - {class_name: nowhere.Tool}
  - {class_name: support.verl_tools.Scales, config: {type: native}}
"""


@pytest.mark.feature("verl's multi-turn", "file of tools")
def test_classes_of_verl_that_verl_has_removed_are_those_of_turnmill(monkeypatch: pytest.MonkeyPatch):
    for name in HERE:
        monkeypatch.delitem(sys.modules, name, raising=False)

    offer_removed_tools()

    assert get_tool_class("verl.tools.search_tool.SearchTool") is SearchTool
    assert get_tool_class("verl.tools.gsm8k_tool.Gsm8kTool").__name__ == "Gsm8kTool"
    for name in HERE:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.feature("verl's multi-turn", "file of tools")
def test_classes_that_cannot_be_loaded_are_named(tmp_path: Path):
    (tmp_path / "tools.yaml").write_text(FILE)

    assert dict(missing_classes(tmp_path / "tools.yaml")) == {
        "verl.tools.geo3k_tool.Geo3kTool": (
            "Copy its file, which verl no longer has, into a folder on the Python path, and give its name there."
        ),
        "verl.tools.mcp_search_tool.MCPSearchTool": (
            "Use the agent type tool with mcp_interface: verl has removed tools of type mcp."
        ),
        "nowhere.Tool": "Put its module into a folder on the Python path, and give its name there.",
    }
    (tmp_path / "tools.yaml").write_text("tools: [\n")
    assert list(missing_classes(tmp_path / "tools.yaml")) == []
