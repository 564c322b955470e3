"""Board: all runs at a glance, what they cost, and why their GPUs idle."""

from turnmill.observability.dashboards.board import PRICE, RUN, WINDOW, Board, Row, number, stacked, table

OF_RUN = "namespace, training_job"
GPUS = RUN("turnmill_gpus")
PARTS = RUN("turnmill_step_part_seconds_total")
USEFUL = RUN("turnmill_step_part_seconds_total", 'part=~"generation|learning"')
IDLE = RUN("turnmill_step_part_seconds_total", 'part!~"generation|learning"')


def of_run(metric: str) -> str:
    """Return the value of a gauge for each run: that of its newest attempt, where they differ for a moment."""
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
    (RUN,),
    (RUNS, COST),
)
