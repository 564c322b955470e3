"""Import of tools from files in the user's folder; files written for verl-tool's server work unchanged."""

import asyncio
import copy
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from turnmill.core.errors import ToolFailedError, ToolUnavailableError
from turnmill.tools import verl_tool_environments
from turnmill.tools.base import Tool, ToolCall, ToolContext, ToolResult
from turnmill.tools.registration import FOLDER_PACKAGE, folder_tools
from turnmill.trajectories.base import Change

NOT_TOOLS = ("base.py", "finish.py", "__init__.py")
"""Files of verl-tool's own folder of tools that belong to its server; turnmill has its own."""

_ENVIRONMENT = "env"


def import_file(file: Path) -> bool:
    """Import a file, and return False if it was imported before.

    `from .base import BaseTool, register_tool` in it refers to this module. Raises ToolUnavailableError if it cannot be
    loaded.
    """
    package = sys.modules.setdefault(FOLDER_PACKAGE, ModuleType(FOLDER_PACKAGE))
    package.__path__ = [str(file.parent)]
    sys.modules[f"{FOLDER_PACKAGE}.base"] = sys.modules[__name__]
    module_name = f"{FOLDER_PACKAGE}.{file.stem}"
    # Another file may have imported it already.
    known = sys.modules.get(module_name)
    if known is not None and known.__file__ == str(file):
        return False
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise ToolUnavailableError(f"{file} is no Python module.")
    module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise ToolUnavailableError(f"{file} cannot be loaded: {type(error).__name__}: {error}") from error
    _make_picklable(package)
    return True


def _make_picklable(package: ModuleType) -> None:
    """Let Ray send classes of the files to its workers, which cannot import them."""
    if (ray := sys.modules.get("ray")) is not None:
        ray.cloudpickle.register_pickle_by_value(package)


def offer_verl_tool() -> None:
    """Make `verl_tool.servers.tools` and its module `base` importable; both refer to this module."""
    for name in ("verl_tool", "verl_tool.servers"):
        sys.modules.setdefault(name, ModuleType(name)).__path__ = []
    for name in ("verl_tool.servers.tools", "verl_tool.servers.tools.base"):
        sys.modules[name] = sys.modules[__name__]


class BaseTool:
    """Base class of tools written for verl-tool, which keep an environment for each trajectory."""

    tool_type = "base"

    def __init__(self, num_workers: int = 1) -> None:
        self.num_workers = num_workers
        self.env_cache: dict[str, object] = {}

    def get_usage_inst(self) -> str:
        """Return a text that explains to agents how to call the tool."""
        return "Base usage instructions"

    def has_env(self, trajectory_id: str) -> bool:
        """Return True if the trajectory has an environment."""
        return trajectory_id in self.env_cache

    def load_env(self, trajectory_id: str) -> Any:
        """Return the trajectory's environment, or a new one that is not saved yet."""
        fresh = {"trajectory_id": trajectory_id, "metadata": {"turns": 0}, "previous_obs": []}
        return self.env_cache.get(trajectory_id, fresh)

    def save_env(self, trajectory_id: str, env: object) -> None:
        """Save the trajectory's environment."""
        self.env_cache[trajectory_id] = env

    def update_env(
        self,
        trajectory_id: str,
        env: Any,
        action: object,
        is_valid: bool,
        extra_field: object,
        observation: object,
        **more: object,
    ) -> None:
        """Count the turn and append it to the environment's `previous_obs`."""
        env["metadata"]["turns"] += 1
        record = {"action": action, "is_valid": is_valid, "observation": observation, "extra_field": extra_field}
        env["previous_obs"].append({**record, **more})

    def delete_env(self, trajectory_id: str) -> None:
        """Delete the trajectory's environment."""
        self.env_cache.pop(trajectory_id, None)

    def get_env_cache_keys(self) -> list[str]:
        """Return the ids of trajectories that have an environment."""
        return list(self.env_cache)

    def parse_action(self, action: str) -> tuple[Any, bool]:
        """Return the part of an action for this tool, and whether the action is valid."""
        return action[:10], True

    def conduct_action(self, trajectory_id: str, action: str, extra_field: Any) -> tuple[Any, bool, bool]:
        """Execute the action; return observation, done and valid."""
        parsed, is_valid = self.parse_action(action)
        env = self.load_env(trajectory_id)
        observation = f"Base observation for {trajectory_id} in turn {env['metadata']['turns']}"
        self.update_env(trajectory_id, env, parsed, is_valid, extra_field, observation)
        self.save_env(trajectory_id, env)
        return observation, True, True

    def maybe_cleanup_env(
        self, trajectory_ids: Sequence[str], actions: Sequence[str], extra_fields: Sequence[Any]
    ) -> None:
        """Delete the environments of trajectories whose last step this is."""
        for trajectory_id, extra in zip(trajectory_ids, extra_fields, strict=True):
            if extra.get("is_last_step", False):
                self.delete_env(trajectory_id)

    def get_observations(
        self, trajectory_ids: Sequence[str], actions: Sequence[str], extra_fields: Sequence[Any]
    ) -> tuple[Sequence[Any], Sequence[bool], Sequence[bool]]:
        """Execute a batch of actions; the server calls it with batches of one."""
        results = [self.conduct_action(*call) for call in zip(trajectory_ids, actions, extra_fields, strict=True)]
        self.maybe_cleanup_env(trajectory_ids, actions, extra_fields)
        observations, dones, valids = zip(*results, strict=True)
        return observations, dones, valids


registered_tools: dict[str, type[BaseTool]] = {}
"""Classes written for verl-tool by their `tool_type`."""


def register_tool(tool_class: type[BaseTool]) -> type[BaseTool]:
    """Register a class written for verl-tool under its `tool_type`."""

    class Adapted(_AdaptedTool):
        name: ClassVar[str] = tool_class.tool_type
        keeps_objects: ClassVar[bool] = tool_class.delete_env is not BaseTool.delete_env
        adapted: ClassVar[type[BaseTool]] = tool_class

    Adapted.__module__, Adapted.__qualname__ = tool_class.__module__, tool_class.__qualname__
    registered_tools[tool_class.tool_type] = tool_class
    folder_tools[tool_class.tool_type] = Adapted
    return tool_class


class _AdaptedTool(Tool):
    """Keeps a trajectory's environment in the tool's state."""

    stateful: ClassVar[bool] = True
    adapted: ClassVar[type[BaseTool]]

    def __init__(self, context: ToolContext) -> None:
        super().__init__(context)
        with ThreadPoolExecutor(1) as thread:
            self._tool = thread.submit(_create, self.adapted).result()
        self._environments: dict[str, object] = {}

    def usage(self) -> str:
        return self._tool.get_usage_inst()

    def parse(self, action: str) -> str | None:
        try:
            parsed, is_valid = self._tool.parse_action(action)
        except Exception:
            # An exception of the parser means that it does not accept the action.
            return None
        return str(parsed) if is_valid else None

    async def call(self, call: ToolCall) -> ToolResult:
        trajectory_id, extra = call.trajectory_id, dict(call.extra)
        # A copy for this call: the thread of a cancelled call runs on, and must not change the next call's environment.
        tool = copy.copy(self._tool)
        tool.env_cache = {}
        if _ENVIRONMENT in call.state:
            tool.save_env(trajectory_id, verl_tool_environments.unpack(call.state[_ENVIRONMENT]))
        batch = [trajectory_id], [call.action], [extra]
        try:
            get_observations = getattr(tool, "aget_observations", None)
            if inspect.iscoroutinefunction(get_observations):
                results = await get_observations(*batch)
            else:
                results = await asyncio.to_thread(tool.get_observations, *batch)
            observation, done, valid = (values[0] for values in results)
            return ToolResult(observation, bool(done), bool(valid), self._change(tool, trajectory_id))
        finally:
            self._environments.pop(trajectory_id, None)
            if self.keeps_objects and trajectory_id in tool.env_cache:
                self._environments[trajectory_id] = tool.env_cache[trajectory_id]

    async def forget(self, trajectory_id: str) -> None:
        """Let the tool delete what it keeps of a trajectory, if it was called for it in this process."""
        if trajectory_id in self._environments:
            tool = copy.copy(self._tool)
            tool.env_cache = {trajectory_id: self._environments.pop(trajectory_id)}
            await asyncio.to_thread(tool.delete_env, trajectory_id)

    def _change(self, tool: BaseTool, trajectory_id: str) -> Change:
        if not tool.has_env(trajectory_id):
            return Change(forget=True)
        try:
            return Change(written={_ENVIRONMENT: verl_tool_environments.pack(tool.load_env(trajectory_id))})
        except (TypeError, ValueError, OverflowError) as error:
            raise ToolFailedError(
                f"{self.name}: its environment cannot be saved: {error}. Keep only plain values: numbers, text, bytes, "
                "lists, tuples, sets and dicts of them."
            ) from error


def _create(tool_class: type[BaseTool]) -> BaseTool:
    """Create a tool in a thread, with an event loop that its constructor may run, as some of verl-tool's do."""
    with asyncio.Runner() as runner:
        asyncio.set_event_loop(runner.get_loop())
        try:
            return tool_class()
        except Exception as error:
            raise ToolUnavailableError(
                f"The tool {tool_class.tool_type!r} cannot be created: {type(error).__name__}: {error}"
            ) from error
