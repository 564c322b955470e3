"""Former import path of `turnmill.tasks`, kept for authors of task sources."""

from turnmill.tasks import Answer, Task, TaskSource, create_source, source_names

__all__ = ["Answer", "Task", "TaskSource", "create_source", "source_names"]
