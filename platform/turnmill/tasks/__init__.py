"""Sources of tasks for agents with tools, and the rewards of answers."""

from turnmill.tasks.base import Answer, Task, TaskSource
from turnmill.tasks.registry import create_source, source_names

__all__ = ["Answer", "Task", "TaskSource", "create_source", "source_names"]
