"""Exit codes of the command line."""

DONE, FAILED, REFUSED, STALE_ATTEMPT, FINAL, INTERRUPTED = 0, 1, 2, 3, 4, 130
"""Success; the run failed; the job file or the command is wrong; a newer attempt has started; the run failed in a way
that another attempt would repeat; Ctrl-C or SIGTERM."""
