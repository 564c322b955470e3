"""Leader election: of several replicas, the holder of a Lease acts."""

import asyncio
import logging
import time
from datetime import UTC, datetime

from turnmill_operator import metrics
from turnmill_operator.api import LEASES, ApiClient, ApiError
from turnmill_operator.resources import Manifest
from turnmill_operator.views import RawObject, version_of

NAME = "turnmill-operator"
DURATION_SECONDS, RENEW_SECONDS, RETRY_SECONDS, REQUEST_SECONDS = 30, 10.0, 3.0, 5.0
# Stop acting well before the Lease expires for others.
RENEW_DEADLINE_SECONDS = 20.0

log = logging.getLogger(__name__)


class Lease:
    """The Lease of the acting replica, renewed while it is held."""

    def __init__(self, api: ApiClient, namespace: str, identity: str) -> None:
        self.held = asyncio.Event()
        self._api = api
        self._namespace = namespace
        self._identity = identity
        self._last_seen: tuple[str, float] = ("", 0.0)
        """The last seen resource version of the Lease, and when this replica first saw it by its own clock."""

        self._written: RawObject | None = None
        """The Lease as this replica has written it last; None if it does not know."""

    async def run(self) -> None:
        """Acquire the Lease and renew it. Runs until it is cancelled, and then releases the Lease."""
        renewed = time.monotonic()
        try:
            while True:
                pause = RETRY_SECONDS
                try:
                    # A renewal is one request, and taking the Lease two.
                    async with asyncio.timeout(REQUEST_SECONDS * (1 if self.held.is_set() else 2)):
                        holds = await self._acquire()
                    if holds:
                        renewed, pause = time.monotonic(), RENEW_SECONDS
                except (ApiError, TimeoutError) as error:
                    holds = self.held.is_set() and time.monotonic() - renewed < RENEW_DEADLINE_SECONDS
                    log.warning("Lease cannot be renewed", extra={"error": str(error), "held": holds})
                self._set_held(holds)
                await asyncio.sleep(pause)
        finally:
            await self._release()

    def _set_held(self, held: bool) -> None:
        if held and not self.held.is_set():
            log.info("Lease taken", extra={"identity": self._identity})
            self.held.set()
        elif not held and self.held.is_set():
            log.warning("Lease lost", extra={"identity": self._identity})
            self.held.clear()
        metrics.LEADER.set(int(held))

    async def delete(self) -> bool:
        """Delete the Lease unless somebody holds it; return whether it is gone."""
        lease = await self._api.get(LEASES, self._namespace, NAME)
        if lease is None:
            return True
        if self._is_free(lease):
            uid, version = lease["metadata"]["uid"], version_of(lease)
            await self._api.delete(LEASES, self._namespace, NAME, uid=uid, version=version)
        return False

    async def _acquire(self) -> bool:
        if self._written is not None and await self._write(self._written):
            return True
        lease = await self._api.get(LEASES, self._namespace, NAME)
        return (lease is None or self._is_free(lease)) and await self._write(lease)

    async def _write(self, lease: RawObject | None) -> bool:
        """Take or renew the Lease; return False if somebody else has written it meanwhile."""
        self._written = None
        try:
            self._written = await self._api.replace(LEASES, self._namespace, self._manifest(lease))
        except ApiError as error:
            if error.code == 409:
                return False
            raise
        return True

    def _is_free(self, lease: RawObject) -> bool:
        """Return whether the Lease is ours, was released, or has expired."""
        spec = lease.get("spec") or {}
        if spec.get("holderIdentity") in (None, "", self._identity):
            return True
        version = lease["metadata"]["resourceVersion"]
        if version != self._last_seen[0]:
            self._last_seen = (version, time.monotonic())
        # Clocks of machines differ: the Lease has expired if this replica has seen no change for its duration.
        return time.monotonic() - self._last_seen[1] > float(spec.get("leaseDurationSeconds", DURATION_SECONDS))

    def _manifest(self, lease: RawObject | None) -> Manifest:
        previous = (lease or {}).get("spec") or {}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        same = previous.get("holderIdentity") == self._identity
        metadata = {"name": NAME, "namespace": self._namespace}
        if lease is not None:
            metadata["resourceVersion"] = lease["metadata"]["resourceVersion"]
        return {
            "apiVersion": LEASES.group_version,
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": DURATION_SECONDS,
                "acquireTime": previous.get("acquireTime", now) if same else now,
                "renewTime": now,
                "leaseTransitions": int(previous.get("leaseTransitions") or 0) + (not same and lease is not None),
            },
        }

    async def _release(self) -> None:
        """Release the Lease, so that another replica can act at once instead of after its duration."""
        if not self.held.is_set():
            return
        self._set_held(False)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                lease = self._written or await self._api.get(LEASES, self._namespace, NAME)
                if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
                    await self._api.replace(
                        LEASES, self._namespace, {**lease, "spec": {**lease["spec"], "holderIdentity": ""}}
                    )
        except (ApiError, TimeoutError) as error:
            log.warning("Lease cannot be released; it expires by itself", extra={"error": str(error)})
