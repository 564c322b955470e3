"""All dashboards."""

from turnmill.observability.dashboards import (
    cost,
    fleet,
    gateway,
    hardware,
    learning,
    operators,
    rollout,
    staleness,
    step_time,
    store,
    tool_servers,
)

BOARDS = (
    fleet.BOARD,
    rollout.BOARD,
    learning.BOARD,
    step_time.BOARD,
    staleness.BOARD,
    tool_servers.BOARD,
    gateway.BOARD,
    store.BOARD,
    operators.BOARD,
    hardware.BOARD,
    cost.BOARD,
)
