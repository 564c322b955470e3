"""Board: cost of teams and runs in GPU hours."""

from turnmill.observability.dashboards.board import CLUSTER, RUN, WINDOW, Board, Row, lines, number, stacked

GPUS = RUN("turnmill_gpus")
REQUESTED = CLUSTER("kube_pod_container_resource_requests", 'resource="nvidia_com_gpu"')
PARTS = RUN("turnmill_step_part_seconds_total")
USEFUL = RUN("turnmill_step_part_seconds_total", 'part=~"generation|learning"')
TOKENS = RUN("turnmill_tokens_total", 'kind="response"')


def hours(gpus: str, by: str) -> str:
    """Return GPU hours over the time shown: one sample per minute, 60 of them an hour."""
    return f"sum_over_time((sum by ({by}) ({gpus}))[$__range:1m]) / 60"


TEAMS = Row(
    "Teams",
    (
        number(
            "GPU hours of runs",
            "GPU hours that the runs of each team held in the time shown.",
            "h",
            (hours(GPUS, "namespace"), "{{namespace}}"),
            width=12,
        ),
        number(
            "GPU hours of pods",
            "GPU hours that the pods of each team reserved in the time shown; those beyond its runs were idle.",
            "h",
            (hours(REQUESTED, "namespace"), "{{namespace}}"),
            width=12,
        ),
        stacked(
            "GPUs held by runs",
            "GPUs that the runs of each team hold, by kind.",
            "none",
            (f"sum by (namespace, accelerator) ({GPUS})", "{{namespace}}: {{accelerator}}"),
            width=12,
        ),
        stacked(
            "GPUs reserved by pods",
            "GPUs that the pods of each team reserve, whether a run holds them or not.",
            "none",
            (f"sum by (namespace) ({REQUESTED})", "{{namespace}}"),
            width=12,
        ),
    ),
)

RUNS = Row(
    "Runs",
    (
        number(
            "GPU hours of each run",
            "GPU hours that each run held in the time shown, by role and kind of GPU.",
            "h",
            (
                hours(GPUS, "namespace, training_job, role, accelerator"),
                "{{namespace}} {{training_job}}: {{role}} on {{accelerator}}",
            ),
            width=12,
        ),
        lines(
            "GPUs at work",
            "GPUs of each run, times the share of its steps in which it generates or learns.",
            "none",
            (
                f"sum by (namespace, training_job) ({GPUS})"
                f" * sum by (namespace, training_job) (rate({USEFUL}[{WINDOW}]))"
                f" / sum by (namespace, training_job) (rate({PARTS}[{WINDOW}]))",
                "{{namespace}} {{training_job}}",
            ),
            width=6,
        ),
        lines(
            "Generated tokens per GPU hour",
            "Tokens that each run generates per GPU hour it holds.",
            "short",
            (
                f"3600 * sum by (namespace, training_job) (rate({TOKENS}[{WINDOW}]))"
                f" / (sum by (namespace, training_job) ({GPUS}) > 0)",
                "{{namespace}} {{training_job}}",
            ),
            width=6,
        ),
    ),
)

BOARD = Board(
    "cost",
    "Turnmill / Cost",
    "GPU hours of teams and runs, and how much of them generated or learned.",
    (RUN, CLUSTER),
    (TEAMS, RUNS),
)
