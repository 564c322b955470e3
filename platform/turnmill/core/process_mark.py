"""The environment variable that every process of a run on one machine carries."""

PROCESS_MARK = "TURNMILL_PROCESS_MARK"
"""Its value belongs to one attempt at a run: by it the attempt's processes are found and ended."""
