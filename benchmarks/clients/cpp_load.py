"""RocketMQ's C++ client, as a process that measures how it sends.

    python -m benchmarks.clients.cpp_load NAME_SERVER TOPIC THREADS SIZE WARM_UP MEASURED

It prints one line of JSON: messages a second, milliseconds of the 99th percentile, sends that
failed, the last error, and sends that did not leave the client: now and then, it finds no route for
a topic that it has sent to before.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

import numpy as np
from rocketmq.client import Message, Producer
from rocketmq.exceptions import RocketMQException

_SEND_MS = 30_000
_ROUTE_SECONDS = 60.0
_ROUTE_PAUSE = 0.2
_NO_ROUTE = "No route info"


class _Sender(threading.Thread):
    """Sends until a time; each send waits for the answer to the one before.

    Attributes:
        times: when each send began and ended.
        failures: when sends failed, and why.
    """

    def __init__(self, producer: Producer, topic: str, body: str, until: float) -> None:
        super().__init__()
        self._producer, self._topic, self._body, self._until = producer, topic, body, until
        self.times: list[tuple[float, float]] = []
        self.failures: list[tuple[float, str]] = []

    def run(self) -> None:
        while (began := time.perf_counter()) < self._until:
            try:
                _send(self._producer, self._topic, self._body)
            except RocketMQException as error:
                self.failures.append((time.perf_counter(), str(error)))
            else:
                self.times.append((began, time.perf_counter()))


def _send(producer: Producer, topic: str, body: str) -> None:
    message = Message(topic)
    message.set_body(body)
    producer.send_sync(message)


def main(
    name_server: str, topic: str, threads: int, size: int, warm_up: float, measured: float
) -> None:
    """Send from threads that share one producer, and print what came out.

    Args:
        name_server: where it asks for brokers.
        topic: where to.
        threads: how many.
        size: bytes of a body.
        warm_up: seconds that are not counted; what ends before they do is not.
        measured: seconds that are.
    """
    producer = Producer("cpp-load", timeout=_SEND_MS)
    producer.set_namesrv_addr(name_server)
    producer.start()
    _fetch_route(producer, topic)
    begin = time.perf_counter() + warm_up
    end = begin + measured
    senders = [_Sender(producer, topic, "x" * size, end) for _ in range(threads)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    times = [pair for sender in senders for pair in sender.times]
    took = [ended - began for began, ended in times if begin <= ended < end]
    errors = [why for each in senders for at, why in each.failures if begin <= at < end]
    failures = [why for why in errors if _NO_ROUTE not in why]
    said = {
        "rate": len(took) / measured,
        "p99Ms": float(np.percentile(took, 99)) * 1e3 if took else 0.0,
        "failed": len(failures),
        "failure": failures[-1] if failures else "",
        "unsent": len(errors) - len(failures),
    }
    print(json.dumps(said), flush=True)


def _fetch_route(producer: Producer, topic: str) -> None:
    """Send one message: threads whose first sends ask for the route at once can fail."""
    until = time.monotonic() + _ROUTE_SECONDS
    while True:
        try:
            return _send(producer, topic, "first")
        except RocketMQException:
            if time.monotonic() > until:
                raise
            time.sleep(_ROUTE_PAUSE)


if __name__ == "__main__":
    _server, _topic, *_numbers = sys.argv[1:]
    main(_server, _topic, *map(int, _numbers[:2]), *map(float, _numbers[2:]))
    os._exit(0)  # the library may crash when Python takes it down
