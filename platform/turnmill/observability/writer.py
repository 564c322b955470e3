"""Id of the process that appends to files of a run folder.

Appends of several machines to one file overwrite each other on NFS, which has no atomic append. So what processes of
several machines append goes into one file per process, with this id in its name.
"""

import functools
import os
import re
import socket
import uuid


@functools.cache
def writer_id() -> str:
    """Return an id of this process, without dots, that no process on any machine or in another attempt has."""
    host = re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname()).strip("-")
    return f"{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


# A fork is another process.
os.register_at_fork(after_in_child=writer_id.cache_clear)
