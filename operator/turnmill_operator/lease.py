"""Which of several replicas acts: the holder of a Lease."""

import asyncio
import logging
import time
from datetime import UTC, datetime
from typing import Any

from turnmill_operator import metrics
from turnmill_operator.api import LEASES, Api, ApiError
from turnmill_operator.views import Raw

NAME = "turnmill-operator"
DURATION_SECONDS, RENEW_SECONDS, RETRY_SECONDS, REQUEST_SECONDS = 30, 10.0, 3.0, 5.0
# Stop well before others may take over.
GIVE_UP_SECONDS = 20.0

log = logging.getLogger(__name__)


class Lease:
    """A claim to act, written while it is held, and every so often."""

    def __init__(self, api: Api, namespace: str, identity: str) -> None:
        self.held = asyncio.Event()
        self._api = api
        self._namespace = namespace
        self._identity = identity
        self._seen: tuple[str, float] = ("", 0.0)
        """The last version of the Lease, and when this replica first saw it by its own clock."""

    async def run(self) -> None:
        """Hold the Lease whenever it can be had; returns only by being cancelled, and gives it back then."""
        renewed = time.monotonic()
        try:
            while True:
                pause = RETRY_SECONDS
                try:
                    async with asyncio.timeout(REQUEST_SECONDS):
                        holds = await self._take()
                    if holds:
                        renewed, pause = time.monotonic(), RENEW_SECONDS
                except (ApiError, TimeoutError) as error:
                    holds = self.held.is_set() and time.monotonic() - renewed < GIVE_UP_SECONDS
                    log.warning("Lease cannot be renewed", extra={"error": str(error), "held": holds})
                self._set(holds)
                await asyncio.sleep(pause)
        finally:
            await self._give_back()

    def _set(self, holds: bool) -> None:
        if holds and not self.held.is_set():
            log.info("Lease taken", extra={"identity": self._identity})
            self.held.set()
        elif not holds and self.held.is_set():
            log.warning("Lease lost", extra={"identity": self._identity})
            self.held.clear()
        metrics.LEADER.set(int(holds))

    async def _take(self) -> bool:
        lease = await self._api.get(LEASES, self._namespace, NAME)
        if lease is not None and not self._is_free(lease):
            return False
        try:
            await self._api.replace(LEASES, self._namespace, self._claim(lease))
        except ApiError as error:
            if error.code == 409:
                return False
            raise
        return True

    def _is_free(self, lease: Raw) -> bool:
        """Whether it is ours, or given back, or its holder has written nothing for as long as it promised."""
        spec = lease.get("spec") or {}
        if spec.get("holderIdentity") in (None, "", self._identity):
            return True
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = (version, time.monotonic())
        # Clocks of machines differ; what counts is how long this replica has seen no change.
        return time.monotonic() - self._seen[1] > spec.get("leaseDurationSeconds", DURATION_SECONDS)

    def _claim(self, lease: Raw | None) -> dict[str, Any]:
        before = (lease or {}).get("spec") or {}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        same = before.get("holderIdentity") == self._identity
        metadata: dict[str, Any] = {"name": NAME, "namespace": self._namespace}
        if lease is not None:
            metadata["resourceVersion"] = lease["metadata"]["resourceVersion"]
        return {
            "apiVersion": LEASES.group_version,
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": DURATION_SECONDS,
                "acquireTime": before.get("acquireTime", now) if same else now,
                "renewTime": now,
                "leaseTransitions": int(before.get("leaseTransitions") or 0) + (not same and lease is not None),
            },
        }

    async def _give_back(self) -> None:
        """Let another replica act at once instead of in half a minute."""
        if not self.held.is_set():
            return
        self._set(False)
        try:
            async with asyncio.timeout(RETRY_SECONDS):
                lease = await self._api.get(LEASES, self._namespace, NAME)
                if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
                    await self._api.replace(
                        LEASES, self._namespace, {**lease, "spec": {**lease["spec"], "holderIdentity": ""}}
                    )
        except (ApiError, TimeoutError) as error:
            log.warning("Lease cannot be given back; it ends by itself", extra={"error": str(error)})
