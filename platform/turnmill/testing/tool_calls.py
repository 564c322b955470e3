"""Calls of one tool without a server: a scripted sandbox, and a trajectory that stores the tool's state."""

from collections.abc import Callable, Mapping

from turnmill.sandboxes.base import Sandbox, SandboxResult, SandboxTask
from turnmill.tools.base import Tool, ToolCall, ToolContext, ToolResult
from turnmill.tools.registry import create


class ScriptedSandbox:
    """Returns its outcomes in order, and records its tasks."""

    def __init__(self, *outcomes: SandboxResult) -> None:
        self.outcomes = list(outcomes)
        self.tasks: list[SandboxTask] = []

    async def run(self, task: SandboxTask) -> SandboxResult:
        """Return the next outcome."""
        self.tasks.append(task)
        return self.outcomes.pop(0)

    async def close(self) -> None:
        """Do nothing."""


class Dialogue:
    """Calls of one tool in one trajectory, each with the state after the previous call."""

    def __init__(self, tool: Tool, extra: Mapping[str, object] | None = None, trajectory_id: str = "t") -> None:
        self.tool = tool
        self.extra = dict(extra or {})
        self.trajectory_id = trajectory_id
        self.state: dict[str, bytes] = {}
        self.result = ToolResult("")

    async def say(self, action: str) -> str:
        """Call the tool and return the text of its observation; `result` has the rest."""
        parsed = self.tool.parse(action)
        assert parsed is not None, f"{self.tool.name} does not take {action!r}"
        call = ToolCall(self.trajectory_id, action, parsed, self.extra, dict(self.state))
        self.result = await self.tool.call(call)
        if change := self.result.change:
            kept = {} if change.forget else self.state
            self.state = {name: part for name, part in kept.items() if name not in change.removed}
            self.state.update(change.written)
        observation = self.result.observation
        return observation if isinstance(observation, str) else str(observation["obs"])


def make_tool(name: str, sandbox: Sandbox | None = None, **settings: str) -> Tool:
    """Return a tool with these settings; without a given sandbox, it gets one that expects no task."""
    return create(name, ToolContext(sandbox or ScriptedSandbox(), settings))


NewDialogue = Callable[..., Dialogue]
"""Type of a fixture that creates a dialogue from a tool's name, extra fields and settings."""
