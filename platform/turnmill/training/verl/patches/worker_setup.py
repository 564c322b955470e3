"""A script that sets a worker's variables without importing Ray for it.

Each of Ray's workers with variables of its own begins as an interpreter that sets them and executes another one. Its
import of Ray takes half a second of a processor, and workers of a run start one after the other.
"""

from contextlib import AbstractContextManager
from pathlib import Path

from ray._private import ray_constants

from turnmill.training.verl.patches import Patch, replaced

PATCH = Patch(
    target="ray._private.ray_constants.SETUP_WORKER_FILENAME",
    change="a worker's variables are set by a script of turnmill's",
    reason="Ray's script imports Ray, half a second for each of the nine processes of a run",
    distribution="ray",
    version="2.60.0",
    source="https://github.com/ray-project/ray/blob/ray-2.60.0/python/ray/_private/node.py#L166",
    quote="ray_constants.SETUP_WORKER_FILENAME,",
)


def applied(script: Path) -> AbstractContextManager[None]:
    """Apply the patch to nodes of Ray that start in the context; `script` takes the arguments of Ray's own."""
    return replaced(ray_constants, "SETUP_WORKER_FILENAME", str(script))
