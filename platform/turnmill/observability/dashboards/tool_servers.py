"""Board: load of the tool servers, and failed, refused and killed calls."""

from turnmill.observability.dashboards.board import (
    CLUSTER,
    RECENT,
    TOOL_SERVER,
    Board,
    Row,
    lines,
    number,
    percentiles,
    quantile,
    replicas,
    stacked,
)

CALLS = TOOL_SERVER("turnmill_tool_calls_total")
IN_FLIGHT = TOOL_SERVER("turnmill_tool_calls_in_flight")
FAILED = TOOL_SERVER("turnmill_tool_calls_total", 'outcome="failed"')
RUNS = TOOL_SERVER("turnmill_sandbox_runs_total")
KILLS = TOOL_SERVER("turnmill_sandbox_kills_total")
BUSY = TOOL_SERVER("turnmill_sandbox_runs_in_flight")
PLACES = TOOL_SERVER("turnmill_sandbox_runs_limit")
WAITING = TOOL_SERVER("turnmill_sandbox_runs_waiting")
MEMORY = TOOL_SERVER("turnmill_sandbox_memory_bytes")
CALL_BUCKETS = TOOL_SERVER("turnmill_tool_call_seconds_bucket")
RUN_BUCKETS = TOOL_SERVER("turnmill_tool_run_seconds_bucket")
QUEUE_BUCKETS = TOOL_SERVER("turnmill_tool_queue_seconds_bucket")
SANDBOX_BUCKETS = TOOL_SERVER("turnmill_sandbox_run_seconds_bucket")
HPA = 'horizontalpodautoscaler=~".*tool-server.*"'

NOW = Row(
    "Now",
    (
        number(
            "Replicas",
            "Tool servers that answer Prometheus.",
            "none",
            (f"count({IN_FLIGHT})", "replicas"),
        ),
        number(
            "Calls in flight",
            "Calls that have arrived and are not answered, those that wait included; replicas are scaled on them.",
            "none",
            (f"sum({IN_FLIGHT})", "calls"),
        ),
        number(
            "Sandboxes busy",
            "Runs in the sandbox relative to how many may run at once; above 100 % runs wait.",
            "percentunit",
            (f"sum({BUSY}) / sum({PLACES})", "busy"),
            alarming_from=0.9,
        ),
        number(
            "Wait before work",
            "99th percentile of the time that a request waits before its work begins.",
            "s",
            (quantile(0.99, QUEUE_BUCKETS), "p99"),
            alarming_from=1,
        ),
        number(
            "Failed calls",
            "Share of calls that failed because of infrastructure; their trajectories are left out of the loss.",
            "percentunit",
            (f"sum(rate({FAILED}[{RECENT}])) / sum(rate({CALLS}[{RECENT}]))", "failed"),
            max=1,
            alarming_from=0.01,
        ),
        number(
            "Killed runs",
            "Share of runs in the sandbox that a limit ended.",
            "percentunit",
            (f"sum(rate({KILLS}[{RECENT}])) / sum(rate({RUNS}[{RECENT}]))", "killed"),
            max=1,
            alarming_from=0.2,
        ),
    ),
)

CALLS_ROW = Row(
    "Calls",
    (
        stacked(
            "Calls by tool",
            "Calls per second by the tool that took them.",
            "reqps",
            (f"sum by (tool) (rate({CALLS}[{RECENT}]))", "{{tool}}"),
        ),
        stacked(
            "Calls by outcome",
            "Calls per second by outcome: `invalid` is a mistake of the agent, `tool_error` a fault of the tool, "
            "`failed` infrastructure.",
            "reqps",
            (f"sum by (outcome) (rate({CALLS}[{RECENT}]))", "{{outcome}}"),
        ),
        stacked(
            "Failed calls by cause",
            "Calls per second that failed because of infrastructure, by cause.",
            "reqps",
            (f"sum by (cause) (rate({TOOL_SERVER('turnmill_tool_failures_total')}[{RECENT}]))", "{{cause}}"),
        ),
        lines(
            "Time of a call",
            "Median and 99th percentile of the time of a call by tool, store included.",
            "s",
            *percentiles(CALL_BUCKETS, by="tool"),
        ),
        lines(
            "Time within the tool",
            "Median and 99th percentile of the time within the tool; the rest of a call is the store and the server.",
            "s",
            *percentiles(RUN_BUCKETS, by="tool"),
        ),
        lines(
            "Repeated and taken over",
            "Calls answered from the record because they were repeated, and results refused because another server had "
            "taken the call over.",
            "reqps",
            (f"sum(rate({TOOL_SERVER('turnmill_tool_replays_total')}[{RECENT}]))", "answered from the record"),
            (f"sum(rate({TOOL_SERVER('turnmill_tool_fenced_writers_total')}[{RECENT}]))", "refused"),
        ),
    ),
)

SATURATION = Row(
    "Saturation",
    (
        lines(
            "Calls in flight by replica",
            "Calls that have arrived at each replica and are not answered; large differences mean uneven load.",
            "none",
            (IN_FLIGHT, "{{pod}}{{instance}}"),
        ),
        lines(
            "Wait before work",
            "Median and 99th percentile of the time that a request waits before its work begins.",
            "s",
            *percentiles(QUEUE_BUCKETS),
        ),
        replicas(IN_FLIGHT, HPA),
    ),
)

SANDBOX = Row(
    "Sandbox",
    (
        lines(
            "Runs and their places",
            "Runs in the sandbox at the moment, those of them that wait for a place or for memory, and how many may "
            "run at once.",
            "none",
            (f"sum({BUSY})", "runs"),
            (f"sum({WAITING})", "of them waiting"),
            (f"sum({PLACES})", "places"),
        ),
        lines(
            "Time of a run",
            "Median and 99th percentile of the time of a run in the sandbox.",
            "s",
            *percentiles(SANDBOX_BUCKETS),
        ),
        lines(
            "Memory for runs",
            "Memory that the runs of each replica may use together, by their limits; runs that would exceed it wait.",
            "bytes",
            (MEMORY, "{{pod}}{{instance}}"),
        ),
        stacked(
            "Kills by limit",
            "Runs per second that a limit ended, by the limit.",
            "suffix: /s",
            (f"sum by (limit) (rate({KILLS}[{RECENT}]))", "{{limit}}"),
        ),
    ),
)

BOARD = Board(
    "tool-servers",
    "Turnmill / Tool servers",
    "Load of the tool servers, and calls that are invalid, fail or are killed.",
    (TOOL_SERVER, CLUSTER),
    (NOW, CALLS_ROW, SATURATION, SANDBOX),
)
