"""Tools from files of the user's own; files written for verl-tool's server work as they are."""

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
from turnmill.tools.registry import register
from turnmill.trajectories.base import Change

_PACKAGE = "turnmill_tools_folder"
_ENVIRONMENT = "env"


def import_file(file: Path) -> None:
    """Run it; `from .base import BaseTool, register_tool` in it gives the two of this module."""
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
    """What a tool written for verl-tool inherits: an environment of each trajectory, by its id."""

    tool_type = "base"

    def __init__(self, num_workers: int = 1) -> None:
        self.num_workers = num_workers
        self.env_cache: dict[str, Any] = {}

    def get_usage_inst(self) -> str:
        """How an agent calls it."""
        return ""

    def has_env(self, trajectory_id: str) -> bool:
        """Whether the trajectory has one."""
        return trajectory_id in self.env_cache

    def load_env(self, trajectory_id: str) -> Any:
        """The trajectory's, or a fresh one that is not saved yet."""
        fresh = {"trajectory_id": trajectory_id, "metadata": {"turns": 0}, "previous_obs": []}
        return self.env_cache.get(trajectory_id, fresh)

    def save_env(self, trajectory_id: str, env: Any) -> None:
        """Keep it."""
        self.env_cache[trajectory_id] = env

    def update_env(
        self, trajectory_id: str, env: Any, action: Any, is_valid: bool, extra_field: Any, observation: Any, **more: Any
    ) -> None:
        """Count the turn, and note what happened in it."""
        env["metadata"]["turns"] += 1
        record = {"action": action, "is_valid": is_valid, "observation": observation, "extra_field": extra_field}
        env["previous_obs"].append({**record, **more})

    def delete_env(self, trajectory_id: str) -> None:
        """Forget it."""
        self.env_cache.pop(trajectory_id, None)

    def get_env_cache_keys(self) -> list[str]:
        """Trajectories that have one."""
        return list(self.env_cache)

    def parse_action(self, action: str) -> tuple[Any, bool]:
        """What of an action is meant for it, and whether anything is."""
        raise NotImplementedError

    def conduct_action(self, trajectory_id: str, action: str, extra_field: Any) -> tuple[Any, bool, bool]:
        """Observation, done, valid."""
        raise NotImplementedError


def register_tool(tool_class: type[BaseTool]) -> type[BaseTool]:
    """Make a class written for verl-tool known by its `tool_type`."""

    class Adapted(_VerlTool):
        name: ClassVar[str] = tool_class.tool_type
        adapted: ClassVar[type[BaseTool]] = tool_class

    Adapted.__qualname__ = tool_class.__qualname__
    register(Adapted)
    return tool_class


class _VerlTool(Tool):
    """Carries a trajectory's environment between the store and the tool, as JSON."""

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
            # A parser that fails does not take the action.
            return None
        return str(parsed) if is_valid else None

    async def call(self, call: ToolCall) -> ToolResult:
        trajectory_id, extra = call.trajectory_id, dict(call.extra)
        # Of this call alone: a thread whose call was given up goes on, and would leave its effect to the next one.
        tool = copy.copy(self._tool)
        tool.env_cache = {}
        if _ENVIRONMENT in call.state:
            tool.save_env(trajectory_id, json.loads(call.state[_ENVIRONMENT]))
        try:
            many = getattr(tool, "aget_observations", None)
            if inspect.iscoroutinefunction(many):
                answers = await many([trajectory_id], [call.action], [extra])
                observation, done, valid = (values[0] for values in answers)
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
                f"{self.name}: its environment cannot be kept: {error}. Save what JSON can hold."
            ) from error
