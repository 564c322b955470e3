"""The example tool in docs/tools.md works, and the settings of all tools are documented."""

import re
from pathlib import Path

from turnmill.testing.tool_calls import Dialogue, make_tool

PAGE = Path(__file__).parents[2] / "docs" / "tools.md"


async def test_the_documented_tool_works_from_a_folder(tmp_path):
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "notes.py").write_text(source)
    dialogue = Dialogue(make_tool("notes", TOOLS_FOLDER=str(tmp_path)))

    await dialogue.say("<note>milk</note>")

    assert await dialogue.say("<note>bread</note>") == "\n- milk\n- bread\n"


def test_every_setting_of_a_tool_is_documented():
    sources = (Path(__file__).parents[2] / "platform" / "turnmill" / "tools").rglob("*.py")
    text = "".join(map(Path.read_text, sources))
    kinds = "PYTHON|IPYTHON|BASH|SQL|RETRIEVER|MCP|VERL|TOOLS|IMAGE|BROWSER|PISTON|SANDBOX_FUSION|SERPER|GOOGLE"
    names = {*re.findall(rf'"((?:{kinds})_[A-Z_]+)"', text)}
    names |= {f"{kind}_{name}" for name in re.findall(r'f"{prefix}_([A-Z_]+)"', text) for kind in ("IMAGE", "AUDIO")}

    assert {"AUDIO_FOLDER", "BROWSER_HOSTS"} <= names
    assert [name for name in sorted(names - {"SQL_CACHE_DIR"}) if f"`{name}`" not in PAGE.read_text()] == []
