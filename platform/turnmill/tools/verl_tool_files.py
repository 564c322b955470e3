"""Import of tools from files in the user's folder; files written for verl-tool's server work unchanged."""

import asyncio
import copy
import importlib.util
import inspect
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from turnmill.core.errors import ToolFailedError, ToolUnavailableError
from turnmill.tools.base import Tool, ToolCall, ToolContext, ToolResult
from turnmill.tools.registration import register
from turnmill.trajectories.base import Change

_PACKAGE = "turnmill_tools_folder"
_ENVIRONMENT = "env"


def import_file(file: Path) -> None:
    """Import a file; `from .base import BaseTool, register_tool` in it refers to this module.

    Raises ToolUnavailableError if it cannot be loaded.
    """
    package = sys.modules.setdefault(_PACKAGE, ModuleType(_PACKAGE))
    package.__path__ = [str(file.parent)]
    sys.modules[f"{_PACKAGE}.base"] = sys.modules[__name__]
    module_name = f"{_PACKAGE}.{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise ToolUnavailableError(f"{file} is no Python module.")
    module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise ToolUnavailableError(f"{file} cannot be loaded: {type(error).__name__}: {error}") from error


class BaseTool:
    """Base class of tools written for verl-tool, which keep an environment for each trajectory."""

    tool_type = "base"

    def __init__(self, num_workers: int = 1) -> None:
        self.num_workers = num_workers
        self.env_cache: dict[str, object] = {}

    def get_usage_inst(self) -> str:
        """Return a text that explains to agents how to call the tool."""
        return ""

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

    def parse_action(self, action: str) -> tuple[object, bool]:
        """Return the part of an action for this tool, and whether the action is valid."""
        raise NotImplementedError

    def conduct_action(self, trajectory_id: str, action: str, extra_field: Any) -> tuple[Any, bool, bool]:
        """Execute the action; return observation, done and valid."""
        raise NotImplementedError


def register_tool(tool_class: type[BaseTool]) -> type[BaseTool]:
    """Register a class written for verl-tool under its `tool_type`."""

    class Adapted(_AdaptedTool):
        name: ClassVar[str] = tool_class.tool_type
        adapted: ClassVar[type[BaseTool]] = tool_class

    Adapted.__qualname__ = tool_class.__qualname__
    register(Adapted)
    return tool_class


class _AdaptedTool(Tool):
    """Stores a trajectory's environment as JSON in the tool's state."""

    stateful: ClassVar[bool] = True
    adapted: ClassVar[type[BaseTool]]

    def __init__(self, context: ToolContext) -> None:
        super().__init__(context)
        self._tool = self.adapted()

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
            tool.save_env(trajectory_id, json.loads(call.state[_ENVIRONMENT]))
        try:
            get_observations = getattr(tool, "aget_observations", None)
            if inspect.iscoroutinefunction(get_observations):
                batch = await get_observations([trajectory_id], [call.action], [extra])
                observation, done, valid = (values[0] for values in batch)
            else:
                observation, done, valid = await asyncio.to_thread(
                    tool.conduct_action, trajectory_id, call.action, extra
                )
            return ToolResult(observation, bool(done), bool(valid), self._change(tool, trajectory_id))
        finally:
            tool.delete_env(trajectory_id)

    def _change(self, tool: BaseTool, trajectory_id: str) -> Change:
        if not tool.has_env(trajectory_id):
            return Change(forget=True)
        try:
            return Change(written={_ENVIRONMENT: json.dumps(tool.load_env(trajectory_id)).encode()})
        except (TypeError, ValueError) as error:
            raise ToolFailedError(
                f"{self.name}: its environment cannot be saved: {error}. Keep only values that JSON can hold."
            ) from error
