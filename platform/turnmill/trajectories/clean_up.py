"""Deletion of a run's data from the trajectory store."""

from turnmill.trajectories.client import StoreClient
from turnmill.trajectories.keys import Keys

BATCH = 500


async def forget_run(client: StoreClient, run: str, *, deadline: float) -> int:
    """Delete the run's journals and the tool state of its trajectories; return the number of deleted keys."""
    keys = Keys(run)
    found = {
        name
        for pattern in (keys.everything, keys.of_any_server)
        async for name in client.scan(pattern, deadline=deadline)
    }
    names = sorted(found)
    for start in range(0, len(names), BATCH):
        await client.unlink(*names[start : start + BATCH], deadline=deadline)
    return len(names)
