"""What stands before a portal and speaks TLS for it, as a site's gateway does."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def tls_gateway(context: ssl.SSLContext, to: int) -> Iterator[int]:
    """Gives the port of the gateway; `to` is that of what stands behind it. Both are on loopback."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, on = await asyncio.open_connection("127.0.0.1", to)
        await asyncio.gather(_pass(reader, on), _pass(back, writer))

    async def stand(ready: list[int], started: threading.Event) -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
        ready.append(server.sockets[0].getsockname()[1])
        started.set()
        await asyncio.to_thread(over.wait)
        server.close()

    over, listening, port = threading.Event(), threading.Event(), list[int]()
    thread = threading.Thread(target=lambda: asyncio.run(stand(port, listening)))
    thread.start()
    listening.wait()
    try:
        yield port[0]
    finally:
        over.set()
        thread.join()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.close()
