"""Encoding of the arguments of the store's scripts."""

from turnmill.trajectories.base import CallKey, Claim


def call_arguments(key: CallKey, tool: str, stateful: bool) -> tuple[str, str, bytes, str]:
    """Return tool, whether there is an id, the id, and whether the tool is stateful."""
    return tool, flag(key.call_id is not None), to_bytes(key.call_id or ""), flag(stateful)


def version_arguments(version: str) -> tuple[str, bytes]:
    """Return token and id of the call that made a version; both are empty if there is none."""
    token, _, call_id = version.partition(" ")
    return token, to_bytes(call_id)


def claim_field(claim: Claim) -> bytes:
    """Return the hash field of a claim, see `scripts/trajectory.lua`."""
    return to_bytes(f"lock {claim.tool}" if claim.stateful else f"claim {claim.key.call_id}")


def to_bytes(name: str) -> bytes:
    """Encode a name."""
    # Names of files and ids from JSON may hold halves of surrogate pairs.
    return name.encode(errors="surrogatepass")


def to_text(name: bytes) -> str:
    """Decode a name."""
    return name.decode(errors="surrogatepass")


def flag(value: bool) -> str:
    """Encode a boolean value."""
    return "1" if value else "0"


def microseconds(seconds: float) -> int:
    """Convert seconds, at least one microsecond."""
    return max(1, round(seconds * 1e6))
