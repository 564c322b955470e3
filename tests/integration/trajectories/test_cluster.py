import asyncio

import pytest

from turnmill.core.errors import StoreUnavailableError
from turnmill.trajectories.client import StoreClient, deadline_in


@pytest.mark.parametrize("redirection", ["MOVED", "ASK"])
async def test_a_redirection_to_another_node_is_an_error_with_a_way_out(redirection):
    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(4096):
            writer.write(f"-{redirection} 7 127.0.0.1:7001\r\n".encode())
        writer.close()

    node = await asyncio.start_server(redirect, "127.0.0.1", 0)
    client = StoreClient(f"redis://127.0.0.1:{node.sockets[0].getsockname()[1]}/0")

    with pytest.raises(StoreUnavailableError, match="name a proxy that follows them"):
        await client.command("GET", "key", deadline=deadline_in(5))

    await client.close()
    node.close()
