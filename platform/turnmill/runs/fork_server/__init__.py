"""Forks the Python processes of a run from one that has imported torch, vLLM and verl already.

A run on one machine takes about ten processes, each of which would import the same seconds and hundreds of
megabytes of libraries. The fork server imports them once, while Ray starts, and forks itself for each: its pages are
shared. An executable of its own stands for the Python interpreter, for Ray by the field `py_executable` of the runtime
environment, for vLLM by multiprocessing.set_executable; neither knows of it. If no server answers, a process starts as
it always does.
"""

from turnmill.runs.fork_server.launcher import PythonForkServer

__all__ = ["PythonForkServer"]
