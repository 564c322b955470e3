"""Code of tools that runs inside the sandbox, together with untrusted code; fast to import."""

from itertools import chain

MODULES = {
    "python_code": ("turnmill.tools.sandboxed.python_main",),
    "python_oj": ("turnmill.tools.sandboxed.python_main", "turnmill.tools.sandboxed.python_judge"),
    "ipython_code": ("turnmill.tools.sandboxed.python_session",),
    "bash_terminal": ("turnmill.tools.sandboxed.shell",),
    "sql": ("turnmill.tools.sandboxed.sql_session",),
    "text_browser": ("turnmill.tools.sandboxed.page_renderer",),
}
"""Modules whose functions each tool calls in the sandbox.

The fork server imports them before it forks, so that no call waits for them, but only those of the served tools, since
forks of a larger process take longer.
"""

PRELOAD = tuple(dict.fromkeys(chain.from_iterable(MODULES.values())))
