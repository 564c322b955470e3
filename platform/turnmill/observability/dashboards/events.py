"""Events of runs, drawn as marks over the panels of a board: attempts that begin, checkpoints, jobs that fail."""

from turnmill.observability.dashboards.board import JOBS, RUN, Annotation

MINUTE = "1m"
"""Events are looked for in steps of a minute."""

_FAILING = JOBS("turnmill_job_state", 'state=~"Retrying|Failed"') + " == 1"
_AGE = RUN("turnmill_checkpoint_age_seconds")

OF_RUNS = (
    Annotation(
        "Attempts",
        f"{RUN('turnmill_attempt')} unless {RUN('turnmill_attempt')} offset {MINUTE}",
        "blue",
    ),
    Annotation("Checkpoints", f"{_AGE} < {_AGE} offset {MINUTE}", "green"),
    Annotation(
        "Failures",
        f"{_FAILING} unless {JOBS('turnmill_job_state')} offset {MINUTE} == 1",
        "red",
    ),
)
"""Marks on boards of runs: the last needs kube-state-metrics with the configuration of the operator's chart."""
