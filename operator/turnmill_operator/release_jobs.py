"""Releases jobs from an operator that was uninstalled: without it, their finalizer would block their deletion for ever.

`python -m turnmill_operator.release_jobs [NAMESPACE...]`, a hook of the chart. What the trajectory store has of jobs
that are deleted afterwards stays there until it expires, or goes with the store. The operator's Lease in the namespace
`POD_NAMESPACE` goes, too.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence

from turnmill_operator.api import JOBS, ApiClient, ApiError
from turnmill_operator.lease import DURATION_SECONDS, Lease
from turnmill_operator.views import FINALIZER, ObjectKey, RawObject, version_of

PASS_SECONDS = 2.0
QUIET_SECONDS = 10.0
"""Time without a job to release after which it ends: a replica of the operator may still have been ending."""

MAX_SECONDS = 240.0
LEASE_SECONDS = DURATION_SECONDS + 10.0
"""Time for the Lease of a replica that was killed to expire."""


async def release_jobs(api: ApiClient, namespaces: Sequence[str]) -> set[ObjectKey]:
    """Remove the finalizer from all jobs of the namespaces, or of the cluster if there are none; return those jobs.

    Raises TimeoutError if jobs get it again and again, as another operator serves them, and ApiError.
    """
    clock, released = asyncio.get_running_loop().time, set[ObjectKey]()
    quiet_at, deadline = clock() + QUIET_SECONDS, clock() + MAX_SECONDS
    while clock() < quiet_at:
        found = await _release_once(api, namespaces)
        if found:
            quiet_at = clock() + QUIET_SECONDS
        if clock() > deadline:
            names = ", ".join("/".join(key) for key in sorted(found))
            raise TimeoutError(f"Another operator serves these jobs: {names}.")
        released |= found
        await asyncio.sleep(PASS_SECONDS)
    return released


async def _release_once(api: ApiClient, namespaces: Sequence[str]) -> set[ObjectKey]:
    """Remove the finalizer where it is; return those jobs, also if they have changed meanwhile."""
    found = set()
    for namespace in namespaces or (None,):
        async for job in _jobs(api, namespace):
            metadata = job["metadata"]
            if FINALIZER not in metadata.get("finalizers", ()):
                continue
            key = ObjectKey(metadata["namespace"], metadata["name"])
            found.add(key)
            try:
                await api.apply_job(key, metadata["uid"], version_of(job), finalizers=[])
            except ApiError as error:
                if error.code not in (404, 409):
                    raise
    return found


async def _jobs(api: ApiClient, namespace: str | None) -> AsyncIterator[RawObject]:
    """Yield the metadata of jobs; of none if their definition is gone, and they with it."""
    try:
        async for job in api.list(JOBS, namespace, metadata_only=True):
            yield job
    except ApiError as error:
        if error.code != 404:
            raise


async def delete_lease(api: ApiClient, namespace: str) -> bool:
    """Delete the operator's Lease of a namespace; return False if another operator there goes on renewing it."""
    lease, clock = Lease(api, namespace, identity=""), asyncio.get_running_loop().time
    deadline = clock() + LEASE_SECONDS
    while not await lease.delete():
        if clock() > deadline:
            return False
        await asyncio.sleep(PASS_SECONDS)
    return True


async def _main(namespaces: Sequence[str], own_namespace: str | None) -> None:
    api = ApiClient()
    try:
        for key in sorted(await release_jobs(api, namespaces)):
            print(f"{key.namespace}/{key.name}: released")
        if own_namespace and not await delete_lease(api, own_namespace):
            print(f"{own_namespace}: another operator has the Lease")
    finally:
        await api.close()


if __name__ == "__main__":
    try:
        asyncio.run(_main(sys.argv[1:], os.environ.get("POD_NAMESPACE")))
    except (ApiError, TimeoutError) as problem:
        sys.exit(str(problem))
