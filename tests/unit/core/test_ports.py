"""Ports of this machine."""

import socket
from pathlib import Path

import pytest

from turnmill.core import ports
from turnmill.core.ports import PORTS, free_port, free_ports


def test_no_outgoing_connection_gets_a_port_that_was_found():
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    found = {free_port() for _ in range(200)}

    assert len(found) > 190
    assert all(port in PORTS and port < first_outgoing for port in found)


def test_a_port_that_is_served_is_not_found(monkeypatch):
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", free_port()))
        second.bind(("127.0.0.1", free_port()))
        taken, left = (listener.getsockname()[1] for listener in (first, second))
        second.close()
        monkeypatch.setattr(ports, "PORTS", [taken, left])
        monkeypatch.setattr(ports, "_TRIES", 2)

        assert {free_port() for _ in range(20)} == {left}


@pytest.mark.parametrize("told", ["1024\t65535\n", ""])
def test_the_kernel_chooses_where_it_gives_all_ports_to_outgoing_connections(monkeypatch, tmp_path, told):
    (outgoing := tmp_path / "range").write_text(told)
    monkeypatch.setattr(ports, "_OUTGOING", outgoing)

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))

        assert (listener.getsockname()[1] in PORTS) == (not told)


@pytest.mark.parametrize("told", ["1024\t65535\n", "32768\t60999\n"])
def test_several_ports_differ(monkeypatch, tmp_path, told):
    (outgoing := tmp_path / "range").write_text(told)
    monkeypatch.setattr(ports, "_OUTGOING", outgoing)
    monkeypatch.setattr(ports, "PORTS", range(21_000, 21_010))
    monkeypatch.setattr(ports, "_TRIES", 10)

    for _ in range(20):
        assert len(set(free_ports(12))) == 12
