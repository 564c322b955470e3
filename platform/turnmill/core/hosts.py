"""Names under which a server may be addressed, so that a foreign site cannot point its own name at this machine."""

import ipaddress
from collections.abc import Collection


def host_name(host: str) -> str:
    """Return the host of a Host header without its port, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".").lower()


def is_allowed_host(host: str, allowed: Collection[str]) -> bool:
    """Return True for an IP address, `localhost`, and the allowed names, which are in lower case.

    DNS rebinding needs a name: no site can choose which machine an address stands for.
    """
    return host == "localhost" or host in allowed or _is_address(host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
