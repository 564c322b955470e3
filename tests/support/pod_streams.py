"""The streams of pods as an API server serves them over WebSockets: commands and ports are those of this machine."""

import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve
from websockets.typing import Subprotocol

PROTOCOL = Subprotocol("v4.channel.k8s.io")
STDOUT, STDERR, STATUS = b"\x01", b"\x02", b"\x03"
BUFFER_BYTES = 1 << 16


@contextmanager
def pod_streams() -> Iterator[str]:
    """Serve on a free port; yields the server's URL."""
    with serve(_handle, "127.0.0.1", 0, subprotocols=[PROTOCOL], max_size=None, close_timeout=1) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()


def _handle(connection: ServerConnection) -> None:
    assert connection.request is not None
    url = urlsplit(connection.request.path)
    query = parse_qs(url.query)
    try:
        if url.path.endswith("/exec"):
            _execute(connection, query["command"])
        else:
            _forward(connection, int(query["ports"][0]))
    except ConnectionClosed:
        # The client has gone.
        return


def _execute(connection: ServerConnection, command: list[str]) -> None:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    assert process.stdout is not None
    assert process.stderr is not None
    while part := process.stdout.read(BUFFER_BYTES):
        connection.send(STDOUT + part)
    if errors := process.stderr.read():
        connection.send(STDERR + errors)
    code = process.wait()
    status: dict[str, object] = {"status": "Success"}
    if code:
        causes = [{"reason": "ExitCode", "message": str(code)}]
        status = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
    connection.send(STATUS + json.dumps(status).encode())


def _forward(connection: ServerConnection, port: int) -> None:
    for channel in (b"\x00", b"\x01"):
        connection.send(channel + port.to_bytes(2, "little"))
    with socket.create_connection(("127.0.0.1", port)) as target:
        threading.Thread(target=_send, args=(connection, target), daemon=True).start()
        for frame in connection:
            assert isinstance(frame, bytes)
            target.sendall(frame[1:])


def _send(connection: ServerConnection, source: socket.socket) -> None:
    try:
        while part := source.recv(BUFFER_BYTES):
            connection.send(b"\x00" + part)
    except (ConnectionClosed, OSError):
        return
    connection.close()
