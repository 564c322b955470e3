"""Board: the operator."""

from turnmill.observability.dashboards.board import (
    CLUSTER,
    OPERATOR,
    RECENT,
    WINDOW,
    Board,
    Row,
    lines,
    number,
    percentiles,
    quantile,
    stacked,
)

RECONCILES = OPERATOR("turnmill_operator_reconciles_total")
BUCKETS = OPERATOR("turnmill_operator_reconcile_seconds_bucket")
JOBS = OPERATOR("turnmill_operator_jobs")

NOW = Row(
    "Now",
    (
        number(
            "Leaders",
            "Replicas that hold the lease: one, or nothing is reconciled.",
            "none",
            (f"sum({OPERATOR('turnmill_operator_leader')})", "leaders"),
        ),
        number(
            "Replicas",
            "Replicas that answer Prometheus.",
            "none",
            (f"count({OPERATOR('turnmill_operator_leader')})", "replicas"),
        ),
        number(
            "Jobs",
            "Jobs that the leader knows.",
            "none",
            (f"sum({JOBS})", "jobs"),
        ),
        number(
            "Oldest waiting",
            "Longest time that a job has been waiting to be reconciled.",
            "s",
            (f"max({OPERATOR('turnmill_operator_queue_age_seconds')})", "oldest"),
            alarming_from=60,
        ),
        number(
            "Since the last event",
            "Time since the last event from the API server, bookmarks included; it grows if a watch is dead.",
            "s",
            (f"max({OPERATOR('turnmill_operator_last_event_age_seconds')})", "age"),
            alarming_from=600,
        ),
        number(
            "Time to reconcile",
            "99th percentile of the time that reconciling a job takes.",
            "s",
            (quantile(0.99, BUCKETS), "p99"),
            alarming_from=5,
        ),
    ),
)

WORK = Row(
    "Work",
    (
        stacked(
            "Jobs by state",
            "Jobs by the state that `kubectl get atj` shows.",
            "none",
            (f"sum by (state) ({JOBS})", "{{state}}"),
        ),
        lines(
            "Reconciled",
            "Reconciliations per second, by outcome.",
            "ops",
            (f"sum by (outcome) (rate({RECONCILES}[{RECENT}]))", "{{outcome}}"),
        ),
        lines(
            "Time to reconcile",
            "Median and 99th percentile of the time that reconciling a job takes.",
            "s",
            *percentiles(BUCKETS),
        ),
        lines(
            "Errors",
            "Errors per second by reason.",
            "ops",
            (f"sum by (reason) (rate({OPERATOR('turnmill_operator_errors_total')}[{RECENT}]))", "{{reason}}"),
        ),
        lines(
            "Requests to the API server",
            "Requests per second by verb, and applies that met another field manager.",
            "reqps",
            (f"sum by (verb) (rate({OPERATOR('turnmill_operator_api_requests_total')}[{RECENT}]))", "{{verb}}"),
            (f"sum(rate({OPERATOR('turnmill_operator_apply_conflicts_total')}[{RECENT}]))", "conflicts"),
        ),
        lines(
            "Jobs that wait",
            "Jobs that wait to be reconciled; a queue that only grows means that the operator is stuck.",
            "none",
            (f"max({OPERATOR('turnmill_operator_queue_length')})", "waiting"),
        ),
        lines(
            "Attempts that ended",
            "Attempts per hour that ended in each namespace, by outcome.",
            "none",
            (
                f"sum by (namespace, outcome) (rate({OPERATOR('turnmill_operator_attempts_total')}[{WINDOW}])) * 3600",
                "{{namespace}}: {{outcome}}",
            ),
        ),
        lines(
            "Missed changes",
            "Changes per hour that a listing found and no watch had reported; above 0 the watch is dead.",
            "none",
            (
                f"sum by (resource) (rate({OPERATOR('turnmill_operator_missed_events_total')}[{RECENT}])) * 3600",
                "{{resource}}",
            ),
        ),
        lines(
            "Last listing",
            "Time since the last full listing, which is repeated every five minutes.",
            "s",
            (f"max({OPERATOR('turnmill_operator_last_list_age_seconds')})", "age"),
        ),
        lines(
            "Memory",
            "Memory of each replica.",
            "bytes",
            (OPERATOR("process_resident_memory_bytes"), "{{pod}}{{instance}}"),
        ),
    ),
)

KUBERAY = Row(
    "KubeRay",
    (
        lines(
            "RayJobs by state",
            "RayJobs by the deployment status that KubeRay reports.",
            "none",
            (f"sum by (deployment_status) ({CLUSTER('kuberay_job_deployment_status')})", "{{deployment_status}}"),
            width=12,
        ),
        lines(
            "Time until a Ray cluster is ready",
            "Time that KubeRay took to provide the Ray cluster of each run.",
            "s",
            (CLUSTER("kuberay_cluster_provisioned_duration_seconds"), "{{name}}"),
            width=12,
        ),
    ),
)

BOARD = Board(
    "operator",
    "Turnmill / Operator",
    "Whether the operator keeps the cluster in step with the jobs.",
    (OPERATOR, CLUSTER),
    (NOW, WORK, KUBERAY),
)
