"""Where the tasks of agents with tools come from, and what their answers are worth."""

from turnmill.tasks.base import Answer, Task, TaskSource
from turnmill.tasks.registry import create_source, source_names

__all__ = ["Answer", "Task", "TaskSource", "create_source", "source_names"]
