import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from typing import ClassVar
from unittest.mock import patch

import pytest

from turnmill.core.errors import SettingsError, ToolUnavailableError
from turnmill.testing.tool_calls import Dialogue, ScriptedSandbox, make_tool
from turnmill.tools import registry
from turnmill.tools.base import Tool, ToolCall, ToolContext, ToolResult
from turnmill.tools.registration import FOLDER_PACKAGE, folder_tools, registered_tools
from turnmill.tools.sandboxed import PRELOAD
from turnmill.trajectories.base import Change


class Echo(Tool):
    name: ClassVar[str] = "echo"
    requires: ClassVar[tuple[str, ...]] = ()

    def usage(self) -> str:
        return "say anything"

    def parse(self, action: str) -> str | None:
        return action

    async def call(self, call: ToolCall) -> ToolResult:
        return ToolResult(call.parsed)


class Greedy(Echo):
    name: ClassVar[str] = "greedy"
    requires: ClassVar[tuple[str, ...]] = ("python3", "pydantic", "no-such-thing")


OWN_TOOL = """
from turnmill.tools.base import Tool, ToolResult
from turnmill.tools.registry import register

@register
class Shout(Tool):
    name = "shout"
    def usage(self):
        return "shout with <shout>"
    def parse(self, action):
        return action if "<shout>" in action else None
    async def call(self, call):
        return ToolResult(call.parsed.upper())
"""

VERL_TOOL_FILE = """
from .base import BaseTool, register_tool

@register_tool
class Counter(BaseTool):
    tool_type = "counter"
    def get_usage_inst(self):
        return "count with <count>"
    def parse_action(self, action):
        return action, "<count>" in action
    def conduct_action(self, trajectory_id, action, extra_field):
        env = self.load_env(trajectory_id)
        observation = f"turn {env['metadata']['turns']}"
        self.update_env(trajectory_id, env, action, True, extra_field, observation)
        self.save_env(trajectory_id, env)
        return observation, False, True
"""

ASYNC_VERL_TOOL_FILE = """
from .base import BaseTool, register_tool

@register_tool
class Later(BaseTool):
    tool_type = "later"
    def parse_action(self, action):
        return action, True
    async def aget_observations(self, trajectory_ids, actions, extra_fields):
        return [f"{i} said {a}" for i, a in zip(trajectory_ids, actions)], [True], [False]
"""


BATCH_VERL_TOOL_FILE = """
from verl_tool.servers.tools import register_tool
from verl_tool.servers.tools.base import BaseTool, registered_tools

@register_tool
class Batch(BaseTool):
    tool_type = "batch"
    def __init__(self, num_workers=1):
        super().__init__(num_workers)
    def get_observations(self, trajectory_ids, actions, extra_fields):
        seen = []
        for trajectory_id, extra in zip(trajectory_ids, extra_fields):
            env = self.load_env(trajectory_id)
            env.setdefault("seen", {})[len(env.get("seen", {}))] = (extra["x"], {1, 2})
            self.save_env(trajectory_id, env)
            seen.append(str(env["seen"]))
        self.maybe_cleanup_env(trajectory_ids, actions, extra_fields)
        return seen, [False] * len(seen), [True] * len(seen)

assert registered_tools["batch"] is Batch
"""


KEEPING_VERL_TOOL_FILE = """
import asyncio
from .base import BaseTool, register_tool

@register_tool
class Shell(BaseTool):
    tool_type = "shell"
    def __init__(self, num_workers=1):
        super().__init__(num_workers)
        self.lines, self.deleted = {}, []
        asyncio.get_event_loop().run_until_complete(asyncio.sleep(0))
    def parse_action(self, action):
        return action, True
    def delete_env(self, trajectory_id):
        self.deleted.append((trajectory_id, self.env_cache[trajectory_id]["metadata"]["turns"]))
        del self.env_cache[trajectory_id]
        del self.lines[trajectory_id]
    def conduct_action(self, trajectory_id, action, extra_field):
        env = self.load_env(trajectory_id)
        self.lines.setdefault(trajectory_id, []).append(action)
        self.update_env(trajectory_id, env, action, True, extra_field, "")
        self.save_env(trajectory_id, env)
        return "".join(self.lines[trajectory_id]), False, True
"""


@pytest.fixture(autouse=True)
def registered():
    """Remove the tools of one test from the registry before the next."""
    with patch.dict(registered_tools), patch.dict(folder_tools):
        yield
    for name in [name for name in sys.modules if name.startswith((FOLDER_PACKAGE, "verl_tool"))]:
        del sys.modules[name]


NEEDED = {"MCP_GATEWAY_ADDRESS": "http://gateway:1", "SERPER_API_KEY": "secret"}


@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_every_tool_is_made_by_its_name(name):
    tool = make_tool(name, **NEEDED)

    assert tool.name == name


def test_modules_preloaded_by_the_sandbox_can_be_imported():
    for module in PRELOAD:
        __import__(module)


def test_an_unknown_name_is_refused_with_a_suggestion():
    with pytest.raises(
        ToolUnavailableError, match=r"no tool 'pythn_code'. Did you mean 'python_code'.*Known: audio_crop,"
    ):
        registry.find("pythn_code")


def test_a_missing_requirement_is_named_when_the_tool_is_created():
    with pytest.raises(ToolUnavailableError, match=r"'greedy' needs no-such-thing, which is not installed"):
        registry.create(f"{__name__}:Greedy", ToolContext(ScriptedSandbox()))


def test_a_class_can_be_named_by_its_path(monkeypatch):
    monkeypatch.setitem(sys.modules, "some_package", sys.modules[__name__])

    assert registry.find("some_package:Echo") is Echo


@pytest.mark.parametrize("path", ["no.such.module:Class", "json:nothing", "json:dumps", ":"])
def test_an_import_path_without_a_tool_is_refused(path):
    with pytest.raises(ToolUnavailableError):
        registry.find(path)


def test_an_installed_package_offers_tools_by_entry_point(monkeypatch):
    monkeypatch.setitem(sys.modules, "some_package", sys.modules[__name__])
    point = EntryPoint("echo", "some_package:Echo", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "_entry_points", lambda: [point])

    assert registry.find("echo") is Echo
    assert "echo" in registry.names()


def test_a_second_class_under_a_registered_name_is_refused():
    registry.register(Echo)

    class Other(Echo):
        pass

    with pytest.raises(ValueError, match=r"'echo' belongs to .*Echo"):
        registry.register(Other)


@pytest.mark.feature("verl-tool", "a tool from a file")
async def test_a_file_in_the_tools_folder_is_a_tool(tmp_path):
    (tmp_path / "shout.py").write_text(OWN_TOOL)

    dialogue = Dialogue(make_tool("shout", TOOLS_FOLDER=str(tmp_path)))

    assert await dialogue.say("<shout>") == "<SHOUT>"
    assert "shout" in registry.names(tmp_path)


@pytest.mark.feature("verl-tool", "state of each trajectory")
async def test_a_verl_tool_file_has_an_environment_per_trajectory(tmp_path):
    (tmp_path / "counter.py").write_text(VERL_TOOL_FILE)
    tool = make_tool("counter", TOOLS_FOLDER=str(tmp_path))
    one, other = Dialogue(tool, trajectory_id="one"), Dialogue(tool, trajectory_id="other")

    observations = [await one.say("<count>"), await one.say("<count>"), await other.say("<count>")]

    assert observations == ["turn 0", "turn 1", "turn 0"]
    assert tool.parse("no count") is None
    assert tool.usage() == "count with <count>"


async def test_the_environment_of_a_verl_tool_file_is_kept_outside_the_tool_object(tmp_path):
    (tmp_path / "counter.py").write_text(VERL_TOOL_FILE)
    dialogue = Dialogue(make_tool("counter", TOOLS_FOLDER=str(tmp_path)))
    await dialogue.say("<count>")

    dialogue.tool = make_tool("counter", TOOLS_FOLDER=str(tmp_path))

    assert await dialogue.say("<count>") == "turn 1"


async def test_what_a_verl_tool_file_keeps_in_its_object_is_deleted_when_its_trajectory_is_finished(tmp_path):
    (tmp_path / "shell.py").write_text(KEEPING_VERL_TOOL_FILE)
    tool = make_tool("shell", TOOLS_FOLDER=str(tmp_path))
    one, other = Dialogue(tool, trajectory_id="one"), Dialogue(tool, trajectory_id="other")
    written = tool._tool
    assert [await one.say("a"), await other.say("c"), await one.say("b")] == ["a", "c", "ab"]

    for finished in ("one", "one", "never seen"):
        await tool.forget(finished)

    assert written.deleted == [("one", 2)]
    assert written.lines == {"other": ["c"]}
    other.extra["is_last_step"] = True
    await other.say("d")
    await tool.forget("other")
    assert written.deleted == [("one", 2), ("other", 2)]


def test_a_verl_tool_file_that_deletes_environments_itself_keeps_objects_in_its_process(tmp_path):
    (tmp_path / "shell.py").write_text(KEEPING_VERL_TOOL_FILE)
    (tmp_path / "counter.py").write_text(VERL_TOOL_FILE)
    folder = {"TOOLS_FOLDER": str(tmp_path)}

    kept = [registry.check(name, folder).keeps_objects for name in ("shell", "counter", "base")]

    assert kept == [True, False, False]


async def test_a_verl_tool_file_that_cannot_be_created_is_refused_with_its_own_error(tmp_path):
    fails = VERL_TOOL_FILE + "    def __init__(self):\n        raise ValueError('API key required')\n"
    (tmp_path / "counter.py").write_text(fails)

    with pytest.raises(ToolUnavailableError, match="The tool 'counter' cannot be created: ValueError: API key requi"):
        make_tool("counter", TOOLS_FOLDER=str(tmp_path))


def test_ray_sends_classes_of_verl_tool_files_to_its_workers_by_value(tmp_path):
    (tmp_path / "counter.py").write_text("import ray\n" + VERL_TOOL_FILE)

    make_tool("counter", TOOLS_FOLDER=str(tmp_path))

    sent = sys.modules["ray"].cloudpickle.dumps(sys.modules[f"{FOLDER_PACKAGE}.counter"].Counter)
    assert b"count with <count>" in sent


async def test_a_cancelled_call_of_a_verl_tool_file_does_not_affect_its_repeat(tmp_path):
    waits = VERL_TOOL_FILE.replace("        env = self.load", "        GOING.wait()\n        env = self.load")
    (tmp_path / "counter.py").write_text(f"import threading\nGOING = threading.Event()\n{waits}")
    dialogue = Dialogue(make_tool("counter", TOOLS_FOLDER=str(tmp_path)))
    with ThreadPoolExecutor() as pool:
        asyncio.get_running_loop().set_default_executor(pool)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(dialogue.say("<count>"), 0.1)
        type(dialogue.tool._tool).conduct_action.__globals__["GOING"].set()
        # Wait until the cancelled call has ended too.
        await asyncio.to_thread(lambda: None)
        pool.shutdown()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())

    assert await dialogue.say("<count>") == "turn 0"
    assert dialogue.tool._tool.get_env_cache_keys() == []


@pytest.mark.feature("verl-tool", "asynchronous tools")
async def test_an_asynchronous_verl_tool_file_is_awaited(tmp_path):
    (tmp_path / "later.py").write_text(ASYNC_VERL_TOOL_FILE)
    dialogue = Dialogue(make_tool("later", TOOLS_FOLDER=str(tmp_path)))

    assert await dialogue.say("hello") == "t said hello"
    assert (dialogue.result.done, dialogue.result.valid) == (True, False)


@pytest.mark.feature("verl-tool", "a tool from a file")
async def test_a_verl_tool_file_may_override_only_get_observations_and_import_verl_tool(tmp_path):
    (tmp_path / "batch.py").write_text(BATCH_VERL_TOOL_FILE)
    tool = make_tool("batch", TOOLS_FOLDER=str(tmp_path), VERL_TOOL_IMPORTS="on")
    dialogue = Dialogue(tool, {"x": "a"})

    assert await dialogue.say("anything") == "{0: ('a', {1, 2})}"
    assert await dialogue.say("anything") == "{0: ('a', {1, 2}), 1: ('a', {1, 2})}"
    dialogue.extra["is_last_step"] = True
    await dialogue.say("anything")
    assert dialogue.result.change == Change(forget=True)


def test_verl_tool_cannot_be_imported_unless_the_setting_allows_it(tmp_path):
    (tmp_path / "batch.py").write_text(BATCH_VERL_TOOL_FILE)

    with pytest.raises(ToolUnavailableError, match="No module named 'verl_tool'"):
        make_tool("batch", TOOLS_FOLDER=str(tmp_path))


async def test_a_verl_tool_file_without_methods_of_its_own_behaves_as_the_base_tool(tmp_path):
    (tmp_path / "plain.py").write_text(
        "from .base import BaseTool, register_tool\n@register_tool\nclass Plain(BaseTool):\n    tool_type = 'plain'\n"
    )
    dialogue = Dialogue(make_tool("plain", TOOLS_FOLDER=str(tmp_path)))

    assert dialogue.tool.parse("anything at all") == "anything a"
    assert await dialogue.say("anything at all") == "Base observation for t in turn 0"
    assert await dialogue.say("anything at all") == "Base observation for t in turn 1"
    assert dialogue.result.done


def test_a_file_of_the_folder_replaces_a_built_in_tool_and_a_warning_says_so(tmp_path, caplog):
    make_tool("python_code")
    (tmp_path / "python_code.py").write_text(OWN_TOOL.replace("shout", "python_code"))
    folder = {"TOOLS_FOLDER": str(tmp_path)}

    own = make_tool("python_code", **folder)

    assert own.parse("<python_code>") == "<python_code>"
    [warning] = caplog.records
    assert (warning.getMessage(), warning.tool) == ("A file replaces a tool of the same name", "python_code")
    assert make_tool("python_code", **folder).usage() == own.usage()
    assert type(make_tool("python_code")) is not type(own)


def test_the_base_file_of_a_copied_folder_of_verl_tool_is_not_loaded(tmp_path):
    (tmp_path / "base.py").write_text("raise SystemError")
    (tmp_path / "counter.py").write_text(VERL_TOOL_FILE)

    assert make_tool("counter", TOOLS_FOLDER=str(tmp_path)).usage() == "count with <count>"
    assert make_tool("base", TOOLS_FOLDER=str(tmp_path)).parse("x") == "x"


def test_a_file_may_import_another_one_that_is_served_too(tmp_path):
    (tmp_path / "counter.py").write_text(VERL_TOOL_FILE)
    (tmp_path / "twice.py").write_text(
        "from .base import register_tool\n"
        "from .counter import Counter\n"
        "@register_tool\n"
        "class Twice(Counter):\n"
        "    tool_type = 'twice'\n"
    )

    names = [make_tool(name, TOOLS_FOLDER=str(tmp_path)).name for name in ("twice", "counter")]

    assert names == ["twice", "counter"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("x = 1", "registers no tool 'own'"), ("import no_such_module", "cannot be loaded: ModuleNotFoundError")],
)
def test_a_file_without_a_tool_is_refused(tmp_path, text, message):
    (tmp_path / "own.py").write_text(text)

    with pytest.raises(ToolUnavailableError, match=message):
        registry.find("own", tmp_path)


async def test_the_tool_base_counts_the_calls_of_a_trajectory():
    dialogue = Dialogue(make_tool("base"), trajectory_id="abc")

    assert await dialogue.say("anything") == "Base observation for abc in turn 0"
    assert await dialogue.say("") == "Base observation for abc in turn 1"
    assert dialogue.result.done


@pytest.mark.feature("verl-tool", "the finish tool is always there")
async def test_the_finish_tool_takes_no_action():
    tool = make_tool("finish")

    assert tool.parse("finish") is None
    assert await tool.call(ToolCall("t", "", "", {}, {})) == ToolResult("", done=True, valid=True)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("python_code", {"PYTHON_TIMEOUT_SECONDS": "soon"}, r"PYTHON_TIMEOUT_SECONDS \('soon'\) must be a number"),
        ("python_code", {"PYTHON_TIMEOUT_SECONDS": "nan"}, r"PYTHON_TIMEOUT_SECONDS \('nan'\)"),
        ("bash_terminal", {"BASH_MAX_HOME_FILES": "1.5"}, r"BASH_MAX_HOME_FILES \('1.5'\) must be a whole number"),
        ("bash_terminal", {"BASH_BLOCKED_WORDS": "no"}, r"BASH_BLOCKED_WORDS \('no'\) must be one of on, off"),
        ("search_retrieval", {"RETRIEVER_ON_FAILURE": "lie"}, r"RETRIEVER_ON_FAILURE .* one of fail, empty"),
        ("ipython_code", {"IPYTHON_MAX_STATE_BYTES": "134217728"}, "IPYTHON_MAX_STATE_BYTES .* at most 62914560: the"),
        ("bash_terminal", {"BASH_MAX_HOME_BYTES": "62914561"}, "BASH_MAX_HOME_BYTES .* at most 62914560"),
        ("sql", {"SQL_MAX_CHANGE_BYTES": "62914561"}, "SQL_MAX_CHANGE_BYTES .* at most 62914560"),
        ("pixel_reasoner", {"IMAGE_MAX_STATE_BYTES": "33554432"}, "IMAGE_MAX_STATE_BYTES .* at most 26963382"),
        ("mcp_interface", {}, r"MCP_GATEWAY_ADDRESS \(''\) must be the address"),
    ],
)
def test_an_invalid_setting_is_refused_with_its_name(name, settings, message):
    with pytest.raises(SettingsError, match=message):
        make_tool(name, **settings)
