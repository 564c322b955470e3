"""Ports of this machine."""

import random
import socket
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path

PORTS = range(20_000, 32_768)
"""Above the ports of Ray's workers (10,002 to 19,999), below those that Linux gives to outgoing connections."""

_TRIES = 100
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """Return a TCP port of the loopback address that nothing listens on at present; see `free_ports`."""
    (port,) = free_ports(1)
    return port


def free_ports(number: int) -> list[int]:
    """Return different TCP ports of the loopback address that nothing listens on at present.

    They are none of those that the kernel gives to outgoing connections where others are left, so that none takes one
    before a server listens there, or while that server is started again.
    """
    # Processes that were forked from one must not draw the same.
    drawn = random.SystemRandom().sample(PORTS, _TRIES)
    first_outgoing = _first_outgoing()
    found = list(islice((port for port in drawn if port < first_outgoing and _is_free(port)), number))
    with ExitStack() as stack:
        for _ in range(number - len(found)):
            free = stack.enter_context(socket.socket())
            free.bind(("127.0.0.1", 0))
            found.append(int(free.getsockname()[1]))
    return found


def _first_outgoing() -> int:
    """Return the first port that the kernel gives to outgoing connections, as far as it tells."""
    with suppress(OSError, ValueError, IndexError):
        return int(_OUTGOING.read_text().split()[0])
    return PORTS.stop


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
