"""Forks the Python processes of a run from one that has imported torch, vLLM and verl already.

A run on one machine takes about ten processes, each of which would import the same seconds and hundreds of
megabytes of libraries. The zygote imports them once, while Ray starts, and is forked for each: its pages are shared.
It is put in the place of the Python interpreter, for Ray by the field `py_executable` of the runtime environment, for
vLLM by multiprocessing.set_executable; neither knows of it. Without a zygote that answers, a process starts as it
always does.
"""

from turnmill.runs.zygote.launcher import Zygote

__all__ = ["Zygote"]
