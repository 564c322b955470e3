"""Board: load and durability of the trajectory store."""

from turnmill.observability.dashboards.board import (
    RECENT,
    TOOL_SERVER,
    Board,
    Row,
    lines,
    number,
    percentiles,
    quantile,
    stacked,
)

MEMORY = TOOL_SERVER("turnmill_store_memory_bytes")
LIMIT = TOOL_SERVER("turnmill_store_memory_limit_bytes")
OPERATIONS = TOOL_SERVER("turnmill_store_operations_total")
FAILED = TOOL_SERVER("turnmill_store_operations_total", 'outcome="failed"')
BUCKETS = TOOL_SERVER("turnmill_store_operation_seconds_bucket")
EVICTED = TOOL_SERVER("turnmill_store_evicted_keys_total")

NOW = Row(
    "Now",
    (
        number(
            "Answers",
            "Share of the tool servers that the store answers.",
            "percentunit",
            (f"avg by (namespace) ({TOOL_SERVER('turnmill_store_up')})", "{{namespace}}"),
            max=1,
        ),
        number(
            "Memory taken",
            "Share of its memory limit that the store uses; at 100 % calls fail with the cause `store_full`.",
            "percentunit",
            (f"max by (namespace) ({MEMORY} / ({LIMIT} > 0))", "{{namespace}}"),
            max=1,
            alarming_from=0.85,
        ),
        number(
            "Evicted keys",
            "Keys that the store has evicted to free memory; anything but 0 means that trajectories were lost.",
            "none",
            (f"max by (namespace) ({EVICTED})", "{{namespace}}"),
            alarming_from=1,
        ),
        number(
            "Keys",
            "Keys in the store: trajectories in flight, or finished recently.",
            "none",
            (f"max by (namespace) ({TOOL_SERVER('turnmill_store_keys')})", "{{namespace}}"),
        ),
        number(
            "Time of an operation",
            "99th percentile over all operations, as tool servers see it.",
            "s",
            (quantile(0.99, BUCKETS), "p99"),
            alarming_from=0.1,
        ),
        number(
            "Failed operations",
            "Share of operations that failed.",
            "percentunit",
            (f"sum(rate({FAILED}[{RECENT}])) / sum(rate({OPERATIONS}[{RECENT}]))", "failed"),
            max=1,
            alarming_from=0.01,
        ),
    ),
)

LOAD = Row(
    "Load",
    (
        stacked(
            "Operations",
            "Operations per second: calls begun, committed and released, trajectories finished.",
            "ops",
            (f"sum by (operation) (rate({OPERATIONS}[{RECENT}]))", "{{operation}}"),
        ),
        lines(
            "Time of an operation",
            "Median and 99th percentile by operation, as tool servers see it.",
            "s",
            *percentiles(BUCKETS, by="operation"),
        ),
        lines(
            "Bytes",
            "State and results read from the store and written to it.",
            "Bps",
            (f"sum by (direction) (rate({TOOL_SERVER('turnmill_store_bytes_total')}[{RECENT}]))", "{{direction}}"),
        ),
        lines(
            "Failed operations",
            "Operations per second that failed, by operation.",
            "ops",
            (f"sum by (operation) (rate({FAILED}[{RECENT}]))", "{{operation}}"),
        ),
        lines(
            "Connections",
            "Clients that are connected to the store.",
            "none",
            (f"max by (namespace) ({TOOL_SERVER('turnmill_store_connections')})", "{{namespace}}"),
        ),
        lines(
            "Keys",
            "Keys in the store; their number grows without limit if trajectories are never finished.",
            "none",
            (f"max by (namespace) ({TOOL_SERVER('turnmill_store_keys')})", "{{namespace}}"),
        ),
    ),
)

KEEPING = Row(
    "Is the data kept?",
    (
        lines(
            "Memory",
            "Memory that the store uses, and its limit.",
            "bytes",
            (f"max by (namespace) ({MEMORY})", "{{namespace}}: used"),
            (f"max by (namespace) ({LIMIT})", "{{namespace}}: limit"),
        ),
        lines(
            "Evicted keys",
            "Keys per second that the store evicts to free memory; must be 0.",
            "suffix: /s",
            (f"max by (namespace) (rate({EVICTED}[{RECENT}]))", "{{namespace}}"),
        ),
        lines(
            "Append-only file",
            "Late writes to the disk per second, and 1 while the last write to the append-only file has failed.",
            "none",
            (
                f"max by (namespace) (rate({TOOL_SERVER('turnmill_store_aof_delayed_writes_total')}[{RECENT}]))",
                "{{namespace}}: late writes",
            ),
            (f"max by (namespace) ({TOOL_SERVER('turnmill_store_aof_failing')})", "{{namespace}}: failing"),
        ),
    ),
)

BOARD = Board(
    "store",
    "Turnmill / Trajectory store",
    "Load and durability of the trajectory store.",
    (TOOL_SERVER,),
    (NOW, LOAD, KEEPING),
)
