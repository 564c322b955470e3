"""Shared connections to a store that stops answering."""

import asyncio
from contextlib import suppress

from turnmill.trajectories.connections import ServerConnections


async def read_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accept a connection, but neither read nor answer."""
    reader._transport.pause_reading()
    await asyncio.sleep(60)
    writer.close()


async def test_cancelling_one_disconnect_does_not_cancel_the_others():
    server = await asyncio.start_server(read_nothing, "127.0.0.1", 0)
    connections = ServerConnections(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0", max_connections=2)
    pool = connections._pool
    connection = await pool.get_connection()
    # More than the network holds: the connection closes when the peer has read it, which it never does.
    sending = asyncio.create_task(connection.send_packed_command([bytes(64 * 1024**2)]))
    await asyncio.sleep(0.1)
    await pool.release(connection)

    first = asyncio.create_task(connections.recover(None))
    await asyncio.sleep(0.02)
    second = asyncio.create_task(connections.recover(None))

    await asyncio.wait([first, second], timeout=10)
    assert [task.cancelled() for task in (first, second)] == [False, False]
    assert (first.result(), second.result()) == (None, None)
    sending.cancel()
    with suppress(asyncio.CancelledError, ConnectionError):
        await sending
    server.close()
