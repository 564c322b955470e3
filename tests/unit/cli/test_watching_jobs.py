"""Watching a job of a cluster whose API server does not always answer."""

from typing import Any
from unittest.mock import Mock

import pytest

from turnmill.cli.cluster import commands
from turnmill.cli.cluster.api import ClusterError

JOB: dict[str, Any] = {"status": {"state": "Complete", "conditions": [{"type": "Complete", "status": "True"}]}}
AWAY = "The API server https://a cannot be reached: refused."


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(commands.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(commands.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))


@pytest.mark.parametrize("code", [0, 429, 500, 503])
def test_a_watch_survives_an_outage_of_the_api_server_and_says_so_once(code, capsys):
    away = ClusterError(AWAY, code)
    cluster = Mock(get=Mock(side_effect=[{"status": {"state": "Running"}}, away, away, JOB]))

    assert commands._wait(cluster, "job", commands._has_ended) == JOB

    said = [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]
    assert said == ["Running", f"{AWAY} Trying again.", "Complete"]


def test_a_watch_ends_when_the_api_server_stays_away():
    cluster = Mock(get=Mock(side_effect=ClusterError(AWAY)))

    with pytest.raises(ClusterError, match="cannot be reached"):
        commands._wait(cluster, "job", commands._has_ended)

    assert cluster.get.call_count == commands.OUTAGE_SECONDS / commands.POLL_SECONDS + 2


def test_a_watch_ends_when_the_job_is_gone():
    cluster = Mock(get=Mock(side_effect=[{"status": {"state": "Running"}}, ClusterError("not found", 404)]))

    with pytest.raises(ClusterError, match="not found"):
        commands._wait(cluster, "job", commands._has_ended)
