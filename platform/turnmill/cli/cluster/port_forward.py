"""A local port that leads to a port of a pod, through the API server."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from turnmill.cli.cluster.api import Cluster, ClusterError
from turnmill.core.errors import SettingsError

BUFFER_BYTES = 1 << 16


@contextmanager
def forwarded_port(cluster: Cluster, pod: str, port: int, *, host: str, local_port: int) -> Iterator[int]:
    """Forward connections to a local port, 0 for a free one; yields its number."""
    try:
        listener = socket.create_server((host, local_port))
    except OSError as error:
        raise SettingsError(
            f"--port {local_port}: the port cannot be opened on {host} ({error.strerror or error}). Choose another "
            "one, or 0 for a free one."
        ) from error
    with listener:
        threading.Thread(target=_accept, args=(listener, cluster, pod, port), daemon=True).start()
        yield listener.getsockname()[1]


def _accept(listener: socket.socket, cluster: Cluster, pod: str, port: int) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            # Closed: the command ends.
            return
        threading.Thread(target=_serve, args=(connection, cluster, pod, port), daemon=True).start()


def _serve(connection: socket.socket, cluster: Cluster, pod: str, port: int) -> None:
    with connection:
        try:
            remote = cluster.forward(pod, port)
        except ClusterError:
            # The browser tells that the connection was closed.
            return
        back = threading.Thread(target=_copy, args=(remote, connection), daemon=True)
        back.start()
        _copy(connection, remote)
        back.join()
        remote.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until one of both sides closes."""
    with contextlib.suppress(OSError):
        while data := source.recv(BUFFER_BYTES):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
