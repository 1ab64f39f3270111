"""A server of asyncio, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

from tests.support.waiting import eventually

__all__ = ["in_thread"]


@contextmanager
def in_thread(serving: Callable[[], AbstractAsyncContextManager[str]]) -> Iterator[str]:
    """Run a server until the end of the block; the address is the value of the context."""
    loop, ended, found = asyncio.new_event_loop(), asyncio.Event(), []

    async def serve() -> None:
        async with serving() as address:
            found.append(address)
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        yield eventually(lambda: found)[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
