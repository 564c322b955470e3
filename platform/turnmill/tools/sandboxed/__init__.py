"""Code of tools that runs inside the sandbox, beside what it must not trust; light to import."""

PRELOAD = (
    "turnmill.tools.sandboxed.parts",
    "turnmill.tools.sandboxed.python_main",
    "turnmill.tools.sandboxed.python_session",
    "turnmill.tools.sandboxed.shell",
    "turnmill.tools.sandboxed.sql_session",
)
"""Modules that a warm process imports before it forks, so that no call waits for them."""
