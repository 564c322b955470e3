"""Environment variable of every process of a run on one machine."""

PROCESS_MARK = "TURNMILL_PROCESS_MARK"
"""Its value is unique to an attempt at a run; by it the processes of the attempt are found and terminated."""
