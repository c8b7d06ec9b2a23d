"""A server that has one answer, byte for byte, to everything."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any


async def canned(answer: bytes, work: Callable[[str], Awaitable[Any]]) -> Any:
    """Run the work against a server that sends these bytes to every request, then closes."""

    replies: list[asyncio.Task[Any] | None] = []

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        replies.append(asyncio.current_task())
        if await reader.read(65536):
            writer.write(answer)
        writer.close()
        with contextlib.suppress(OSError):  # the client may have dropped it first
            await writer.wait_closed()

    server = await asyncio.start_server(reply, "127.0.0.1", 0)
    try:
        return await work(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    finally:
        server.close()
        await asyncio.gather(*[task for task in replies if task is not None])
