"""Board: load of the gateway, what its agents ask for, and what the engine answers."""

from turnmill.observability.dashboards.board import (
    CLUSTER,
    GATEWAY,
    RECENT,
    Board,
    Row,
    lines,
    number,
    percentiles,
    quantile,
    replicas,
    stacked,
)

REQUESTS = GATEWAY("turnmill_gateway_requests_total")
BROKEN = GATEWAY("turnmill_gateway_requests_total", 'status=~"5.."')
IN_FLIGHT = GATEWAY("turnmill_gateway_requests_in_flight")
TURNS = GATEWAY("turnmill_gateway_turns_total")
BRANCHES = GATEWAY("turnmill_gateway_turns_total", 'branch!="none"')
ENGINE = GATEWAY("turnmill_gateway_engine_requests_total")
ANSWERED = GATEWAY("turnmill_gateway_requests_total", 'status="200"')
REQUEST_BUCKETS = GATEWAY("turnmill_gateway_request_seconds_bucket")
ENGINE_BUCKETS = GATEWAY("turnmill_gateway_engine_seconds_bucket")
HPA = 'horizontalpodautoscaler=~".*-gateway"'

NOW = Row(
    "Now",
    (
        number("Replicas", "Gateways that answer Prometheus.", "none", (f"count({IN_FLIGHT})", "replicas")),
        number(
            "Requests in flight",
            "Requests for an answer that have arrived and are not answered; most of them wait for the engine.",
            "none",
            (f"sum({IN_FLIGHT})", "requests"),
        ),
        number(
            "Turns",
            "Answers per second that are recorded; a repeated request records none.",
            "reqps",
            (f"sum(rate({TURNS}[{RECENT}]))", "turns"),
        ),
        number(
            "Broken requests",
            "Share of requests that failed because of the engine or the store; agents repeat them.",
            "percentunit",
            (f"sum(rate({BROKEN}[{RECENT}])) / sum(rate({REQUESTS}[{RECENT}]))", "broken"),
            max=1,
            alarming_from=0.05,
        ),
        number(
            "Time of the engine",
            "99th percentile of the time of a request to the engine.",
            "s",
            (quantile(0.99, ENGINE_BUCKETS), "p99"),
        ),
        number(
            "Branches",
            "Share of turns that do not continue their conversation; each branch is a training row of its own.",
            "percentunit",
            (f"sum(rate({BRANCHES}[{RECENT}])) / sum(rate({TURNS}[{RECENT}]))", "branches"),
            max=1,
        ),
    ),
)

REQUESTS_ROW = Row(
    "Requests",
    (
        stacked(
            "Requests by API",
            "Requests per second by the API that they use.",
            "reqps",
            (f"sum by (api) (rate({REQUESTS}[{RECENT}]))", "{{api}}"),
        ),
        stacked(
            "Requests by status",
            "Requests per second by the status of the response: 4xx are mistakes of the agent, 503 is the engine or "
            "the store, 499 a client that went away.",
            "reqps",
            (f"sum by (status) (rate({REQUESTS}[{RECENT}]))", "{{status}}"),
        ),
        lines(
            "Time of a request",
            "Median and 99th percentile of the time from a request to the end of its answer, by API.",
            "s",
            *percentiles(REQUEST_BUCKETS, by="api"),
        ),
    ),
)

TURNS_ROW = Row(
    "Turns",
    (
        stacked(
            "Turns by branch",
            "Recorded answers per second: those that continue their conversation (none), and others by the reason.",
            "reqps",
            (f"sum by (branch) (rate({TURNS}[{RECENT}]))", "{{branch}}"),
        ),
        lines(
            "Answered and recorded",
            "Answered requests and recorded turns per second; what is answered and not recorded was a repeat.",
            "reqps",
            (f"sum(rate({ANSWERED}[{RECENT}]))", "answered"),
            (f"sum(rate({TURNS}[{RECENT}]))", "recorded"),
        ),
    ),
)

ENGINE_ROW = Row(
    "Engine",
    (
        stacked(
            "Requests to the engine",
            "Requests per second to the engine by outcome: a refused one is a mistake, a failed one an outage.",
            "reqps",
            (f"sum by (outcome) (rate({ENGINE}[{RECENT}]))", "{{outcome}}"),
        ),
        stacked(
            "Tokens",
            "Tokens per second that the engine read and generated; it has most of what it reads in its cache.",
            "suffix: /s",
            (f"sum by (kind) (rate({GATEWAY('turnmill_gateway_tokens_total')}[{RECENT}]))", "{{kind}}"),
        ),
        lines(
            "Time of the engine",
            "Median and 99th percentile of the time of a request to the engine.",
            "s",
            *percentiles(ENGINE_BUCKETS),
        ),
    ),
)

SATURATION = Row(
    "Saturation",
    (
        lines(
            "Requests in flight by replica",
            "Requests that each replica is answering; large differences mean uneven load.",
            "none",
            (IN_FLIGHT, "{{pod}}{{instance}}"),
        ),
        replicas(IN_FLIGHT, HPA),
    ),
)

BOARD = Board(
    "gateway",
    "Turnmill / Gateway",
    "Load of a gateway of its own, how its agents' requests end, and the engine behind it.",
    (GATEWAY, CLUSTER),
    (NOW, REQUESTS_ROW, TURNS_ROW, ENGINE_ROW, SATURATION),
)
