"""``python -m tests.cluster.forwarder``: the API server on a node, at 127.0.0.1:6444.

Every node of k3s has it there, and k3s' overlay counts on that.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tests.cluster.addresses import API, API_PORT

PORT = 6444
_PIECE = 65536  # bytes


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy to the end of a stream, and pass the end on."""
    with suppress(ConnectionError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
    with suppress(ConnectionError, OSError):
        writer.write_eof()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Connect a client with the API server; without one, the client's connection ends."""
    with suppress(ConnectionError, OSError):
        from_server, to_server = await asyncio.open_connection(str(API.v4), API_PORT)
        await asyncio.gather(_copy(reader, to_server), _copy(from_server, writer))
        to_server.close()
    writer.close()


async def main() -> None:
    """Serve until killed."""
    server = await asyncio.start_server(_serve, "127.0.0.1", PORT)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
