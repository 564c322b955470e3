"""Forks the Python processes of a run from a process that has already imported torch, vLLM and verl.

A run on one machine has about ten processes, each of which would import hundreds of megabytes of libraries for several
seconds. The fork server imports them once, while Ray starts, and forks itself for each process, so that memory pages
are shared. Ray and vLLM start an executable that replaces the Python interpreter: Ray by the field `py_executable` of
the runtime environment, vLLM by multiprocessing.set_executable. If no server answers, a process starts as usual.

Where a run may be tried again, the fork server of an attempt is itself a fork of one that has made the imports which do
not depend on Ray, and that outlives the attempt.
"""

from turnmill.runs.fork_server.launcher import PythonForkServer

__all__ = ["PythonForkServer"]
