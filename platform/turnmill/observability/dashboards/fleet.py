"""Board: all runs at a glance, what they cost, and why their GPUs idle."""

from turnmill.observability.dashboards.board import (
    JOBS,
    PRICE,
    RUN,
    WINDOW,
    Board,
    Row,
    number,
    stacked,
    table,
    timeline,
)
from turnmill.observability.dashboards.events import OF_RUNS

OF_RUN = "namespace, training_job"
GPUS = RUN("turnmill_gpus")
PARTS = RUN("turnmill_step_part_seconds_total")
USEFUL = RUN("turnmill_step_part_seconds_total", 'part=~"generation|learning"')
IDLE = RUN("turnmill_step_part_seconds_total", 'part!~"generation|learning"')


def of_run(metric: str) -> str:
    """Return the value of a gauge for each run or job: that of its newest attempt, where they differ for a moment."""
    return f"max by ({OF_RUN}) ({RUN(metric)})"


def rate_of_run(metric: str) -> str:
    """Return how fast a counter of each run grows."""
    return f"sum by ({OF_RUN}) (rate({RUN(metric)}[{WINDOW}]))"


def hours(gpus: str) -> str:
    """Return GPU hours over the time shown: one sample per minute, 60 of them an hour."""
    return f"sum_over_time(({gpus})[$__range:1m]) / 60"


HELD = f"sum by ({OF_RUN}) ({GPUS})"
SHARES = f"sum by ({OF_RUN}, part) (rate({IDLE}[{WINDOW}]))"
ALL_PARTS = f"sum by ({OF_RUN}) (rate({PARTS}[{WINDOW}]))"
IDLE_GPUS = f"sum by (part) ({SHARES} / on ({OF_RUN}) group_left () {ALL_PARTS} * on ({OF_RUN}) group_left () {HELD})"

RUNS = Row(
    "Runs",
    (
        table(
            "Runs",
            "One row per run that reports metrics; a click on its name leads to what it is doing.",
            (of_run("turnmill_step"), "step", "none"),
            (of_run("turnmill_steps"), "of steps", "none"),
            (of_run("turnmill_attempt"), "attempt", "none"),
            (of_run("turnmill_progress_age_seconds"), "since progress", "s"),
            (of_run("turnmill_reward_mean"), "reward", "short"),
            (of_run("turnmill_success_ratio"), "success", "percentunit"),
            (rate_of_run("turnmill_episodes_total"), "trajectories", "suffix: /s"),
            (of_run("turnmill_staleness_steps"), "staleness", "suffix: steps"),
            (
                f"{rate_of_run('turnmill_episode_failures_total')} / ({rate_of_run('turnmill_episodes_total')} > 0)",
                "failed",
                "percentunit",
            ),
            (f"1 - sum by ({OF_RUN}) (rate({USEFUL}[{WINDOW}])) / ({ALL_PARTS} > 0)", "idle", "percentunit"),
            (HELD, "GPUs", "none"),
            (hours(HELD), "GPU hours", "h"),
            (f"{hours(HELD)} * {PRICE}", "cost", "short"),
        ),
    ),
)

STATES = (
    ("NotAdmitted", "red"),
    ("Queued", "yellow"),
    ("Starting", "light-blue"),
    ("Running", "green"),
    ("Retrying", "orange"),
    ("Suspending", "light-purple"),
    ("Suspended", "purple"),
    ("Complete", "blue"),
    ("Failed", "dark-red"),
    ("Deleting", "text"),
)
"""States of jobs as `kubectl get atj` shows them."""

STATE_NUMBERS = " or ".join(
    f"""({JOBS("turnmill_job_state", f'state="{state}"')} == 1) * {value}""" for value, (state, _) in enumerate(STATES)
)


ALL_JOBS = Row(
    "Jobs, those that wait or have ended included",
    (
        timeline(
            "States",
            "State of each job over time, from kube-state-metrics with the configuration of the operator's chart.",
            STATES,
            (f"max by ({OF_RUN}) ({STATE_NUMBERS})", "{{namespace}}/{{training_job}}"),
        ),
        table(
            "All jobs",
            "One row per job, also of those that wait or have ended; their states are those above.",
            (of_run("turnmill_job_step"), "step", "none"),
            (of_run("turnmill_job_checkpoint_step"), "checkpoint", "none"),
            (of_run("turnmill_job_attempts"), "attempts", "none"),
            (of_run("turnmill_job_failed_attempts"), "failed attempts", "none"),
            (of_run("turnmill_job_disrupted_attempts"), "disrupted attempts", "none"),
            (f"time() - {of_run('turnmill_job_created_timestamp_seconds')}", "age", "s"),
        ),
    ),
)

COST = Row(
    "What idle GPUs cost",
    (
        number(
            "Cost",
            "GPU hours that runs held in the time shown, times the price of a GPU hour.",
            "short",
            (f"sum({hours(HELD)}) * {PRICE}", "cost"),
            width=6,
        ),
        number(
            "Cost of idle GPUs",
            "Idle GPU hours in the time shown, times the price of a GPU hour.",
            "short",
            (f"sum({hours(IDLE_GPUS)}) * {PRICE}", "cost"),
            width=6,
        ),
        number(
            "Idle GPU hours by cause",
            "GPU hours in the time shown in which runs neither generated nor learned, by what they waited for.",
            "h",
            (hours(IDLE_GPUS), "{{part}}"),
            width=12,
        ),
        stacked(
            "Idle GPUs by cause",
            "GPUs that runs hold, times the share of their steps that each cause takes.",
            "none",
            (IDLE_GPUS, "{{part}}"),
            width=24,
        ),
    ),
)

BOARD = Board(
    "fleet",
    "Turnmill / Fleet",
    "All runs at a glance: how far they are, whether they learn, what they cost, and why their GPUs idle.",
    (RUN, JOBS),
    (RUNS, ALL_JOBS, COST),
    OF_RUNS,
)
