"""Deletes what a run left in the trajectory store, when nobody asks for it any more."""

from turnmill.trajectories.client import StoreClient
from turnmill.trajectories.keys import Keys

BATCH = 500


async def forget_run(client: StoreClient, run: str, *, deadline: float) -> int:
    """Delete the run's journal, and what tool servers keep of its trajectories; returns how many keys there were."""
    keys = Keys(run)
    found = {
        name
        for pattern in (keys.everything, keys.of_any_server)
        async for name in client.scan(pattern, deadline=deadline)
    }
    names = sorted(found)
    for start in range(0, len(names), BATCH):
        await client.command("UNLINK", *names[start : start + BATCH], deadline=deadline)
    return len(names)
