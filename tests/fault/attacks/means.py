"""What attacks are made of: connections that are held, and threads that send."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from typing import Any, Final

from rmqstore_spark.wire.protocol import Code
from tests.fault.attacks import frames
from tests.fault.attacks.driver import Target
from tests.support.processes.plainclient import head_of, request

Attack = Callable[[Target], str]
_WAITING: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_TAKEN: Final = 1 << 20


class _Connection:
    """A connection on which something is sent, as far as it is taken."""

    def __init__(self, target: Target, endpoint: str, data: bytes) -> None:
        if data.startswith(frames.LOGIN):
            data = data.removeprefix(frames.LOGIN)
            self.socket = target.client().socket
        else:
            self.socket = target.connect(endpoint)
        self.socket.setblocking(False)
        self._left = memoryview(data)
        self.has_ended = False

    def step(self, more: bytes, takes: int) -> bool:
        """Send some, or some more; take some answers. Returns whether anything was sent."""
        try:
            if self._left:
                count = self.socket.send(self._left[:_TAKEN])
                self._left = self._left[count:]
                return True
            if more:
                self.socket.send(more)
            if takes and not self.socket.recv(takes):
                self._end()
        except _WAITING:
            pass
        except OSError:
            self._end()
        return False

    def _end(self) -> None:
        self.has_ended = True
        self.socket.close()


def hold(
    where: str,
    count: int,
    *data: bytes,
    more: bytes = b"",
    takes: int = 0,
    is_again: bool = False,
    is_scaled: bool = True,
    seconds: float | None = None,
) -> Attack:
    """Connections on which something is sent, and which are held.

    Args:
        where: the endpoint of a `Target`.
        count: how many.
        data: what is sent on each, in turn.
        more: what is sent behind that now and then.
        takes: so many bytes of the answers are taken at a time.
        is_again: replace those that the process ends.
        is_scaled: whether there are fewer in a smaller run.
        seconds: how long; else as long as the target says.
    """

    def attack(target: Target) -> str:
        endpoint, until = getattr(target, where), 0.0
        with ExitStack() as ends:
            held: list[_Connection | None] = [None] * (target.count(count) if is_scaled else count)
            while not until or time.monotonic() < until:
                is_busy = False
                for number, one in enumerate(held):
                    if not until or (is_again and (one is None or one.has_ended)):
                        with suppress(OSError):
                            sent = data[number % len(data)]
                            one = held[number] = _Connection(target, endpoint, sent)
                            ends.callback(one.socket.close)
                    if one is not None and not one.has_ended:
                        is_busy |= one.step(more, takes)
                until = until or time.monotonic() + (target.seconds if seconds is None else seconds)
                time.sleep(0.0 if is_busy else 0.1)
        return "held"

    return attack


def in_threads(
    count: int, work: Callable[[Target, float], str], *, is_scaled: bool = False
) -> Attack:
    """Do something in so many threads; what came of it, counted.

    Args:
        count: how many threads.
        work: is told when to stop, if it does the same again and again.
        is_scaled: whether there are fewer in a smaller run.
    """

    def attack(target: Target) -> str:
        told, until = list[str](), time.monotonic() + target.seconds

        def do() -> None:
            try:
                told.append(work(target, until))
            except (OSError, AssertionError) as error:
                told.append(f"{type(error).__name__}: {str(error)[:60]}")

        threads = [
            threading.Thread(target=do) for _ in range(target.count(count) if is_scaled else count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return "; ".join(f"{told.count(one)} x {one}" for one in sorted(set(told)))

    return attack


def streams(count: int, blocks: int, size: int, command: Callable[[], dict[str, Any]]) -> Attack:
    """Streams that send blocks without waiting for answers, and then take these.

    Args:
        count: how many.
        blocks: that each of them sends.
        size: of a block, in bytes.
        command: what each of them is for.
    """
    sent = cache(lambda: frames.block(size))

    def send(target: Target, _until: float) -> str:
        many = target.count(blocks)
        with target.client() as client:
            asked = command()
            client.begin(**asked)
            for number in range(many):
                client.send(head_of(Code.BLOCK, len(sent()), number), sent())
            for _ in range(many):
                status = client.answer().acknowledged
                if status != "PUT_OK":
                    return f"told {status}"
            if asked["op"] == "stage":
                return client.ask(Code.FINISH).status or "stored"
            client.send(request(Code.FINISH))
            return "stored"

    return in_threads(count, send)
