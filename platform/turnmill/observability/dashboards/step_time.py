"""Board: time of a step by part, and idle GPUs."""

from turnmill.observability.dashboards.board import (
    JOBS,
    RUN,
    WINDOW,
    Board,
    Panel,
    Row,
    lines,
    number,
    percentiles,
    stacked,
)
from turnmill.observability.dashboards.events import OF_RUNS

PARTS = RUN("turnmill_step_part_seconds_total")
USEFUL = 'part=~"generation|learning"'
STEPS = RUN("turnmill_step_seconds_count")


def share(matchers: str) -> str:
    """Return the share of the steps' time that some parts took."""
    return f"sum(rate({RUN('turnmill_step_part_seconds_total', matchers)}[{WINDOW}])) / sum(rate({PARTS}[{WINDOW}]))"


def share_of_steps(title: str, description: str, query: tuple[str, str], *, alarming_from: float) -> Panel:
    """Return a panel with a share of the steps' time as a large number."""
    return number(title, description, "percentunit", query, width=6, max=1, alarming_from=alarming_from)


IDLE = Row(
    "Do the GPUs work?",
    (
        share_of_steps(
            "Neither generating nor learning",
            "Share of the steps in which the GPUs of a run neither generate nor learn.",
            (f"1 - {share(USEFUL)}", "idle"),
            alarming_from=0.5,
        ),
        share_of_steps(
            "Waiting for tools",
            "Share of the steps in which trajectories waited for tools or environments.",
            (share('part="tools"'), "tools"),
            alarming_from=0.3,
        ),
        share_of_steps(
            "Waiting for stragglers",
            "Share of the steps in which rollout was partly idle until the last trajectory ended.",
            (share('part="stragglers"'), "stragglers"),
            alarming_from=0.3,
        ),
        share_of_steps(
            "Weight sync",
            "Share of the steps that weight sync took.",
            (share('part="weight_sync"'), "weight sync"),
            alarming_from=0.1,
        ),
        stacked(
            "Where the time of a step goes",
            "Share of the steps by part; the parts sum to the whole.",
            "percentunit",
            (
                f"sum by (part) (rate({PARTS}[{WINDOW}])) / ignoring (part) group_left () sum(rate({PARTS}[{WINDOW}]))",
                "{{part}}",
            ),
            width=12,
            max=1,
        ),
        stacked(
            "Time of a step by part",
            "Seconds of a mean step by part; the parts sum to the time of the step.",
            "s",
            (
                f"sum by (part) (rate({PARTS}[{WINDOW}])) / ignoring (part) group_left () sum(rate({STEPS}[{WINDOW}]))",
                "{{part}}",
            ),
            width=12,
        ),
    ),
)

DETAIL = Row(
    "Steps and their phases",
    (
        lines(
            "Time of a step",
            "Median and 90th percentile of the time a step takes.",
            "s",
            *percentiles(RUN("turnmill_step_seconds_bucket"), by="namespace, training_job", high=0.9, window=WINDOW),
        ),
        lines(
            "Steps per hour",
            "Steps that each run finishes in an hour.",
            "none",
            (f"sum by (namespace, training_job) (rate({STEPS}[{WINDOW}])) * 3600", "{{namespace}} {{training_job}}"),
        ),
        lines(
            "Time of a phase",
            "Mean time of each phase of a step, as the trainer names it.",
            "s",
            (
                f"sum by (phase) (rate({RUN('turnmill_phase_seconds_sum')}[{WINDOW}]))"
                f" / sum by (phase) (rate({RUN('turnmill_phase_seconds_count')}[{WINDOW}]))",
                "{{phase}}",
            ),
        ),
        lines(
            "Time without progress",
            "Time since the last turn or phase of a step, and the time at which the attempt fails and is tried again.",
            "s",
            (
                f"min by (namespace, training_job) ({RUN('turnmill_progress_age_seconds')})",
                "{{namespace}} {{training_job}}",
            ),
            (
                f"min by (namespace, training_job) ({RUN('turnmill_stall_timeout_seconds')})",
                "{{namespace}} {{training_job}}: limit",
            ),
        ),
        lines(
            "Work that a crash would cost",
            "Time since the last checkpoint, and the time that passes between two at the pace of the run.",
            "s",
            (
                f"min by (namespace, training_job) ({RUN('turnmill_checkpoint_age_seconds')})",
                "{{namespace}} {{training_job}}: since the last",
            ),
            (
                f"min by (namespace, training_job) ({RUN('turnmill_checkpoint_interval_steps')})"
                f" * sum by (namespace, training_job) (rate({RUN('turnmill_step_seconds_sum')}[{WINDOW}]))"
                f" / sum by (namespace, training_job) (rate({STEPS}[{WINDOW}]))",
                "{{namespace}} {{training_job}}: between two",
            ),
        ),
    ),
)

BOARD = Board(
    "step-time",
    "Turnmill / Step time",
    "Where the time of a step goes, and why GPUs idle.",
    (RUN, JOBS),
    (IDLE, DETAIL),
    OF_RUNS,
)
