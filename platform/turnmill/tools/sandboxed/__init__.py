"""Code of tools that runs inside the sandbox, beside what it must not trust; light to import."""

MODULES = {
    "python_code": "turnmill.tools.sandboxed.python_main",
    "python_oj": "turnmill.tools.sandboxed.python_main",
    "ipython_code": "turnmill.tools.sandboxed.python_session",
    "bash_terminal": "turnmill.tools.sandboxed.shell",
    "sql": "turnmill.tools.sandboxed.sql_session",
    "text_browser": "turnmill.tools.sandboxed.page_renderer",
}
"""What each tool calls there. A warm process imports it before it forks, so that no call waits for it; and no more than
is needed, since a fork takes the longer the more there is."""

PRELOAD = tuple(dict.fromkeys(MODULES.values()))
