"""Print what comes to a topic, with RocketMQ's C++ client (the Python package `rocketmq`).

    python examples/cpp_consumer.py NAME_SERVER TOPIC

It prints `ready` when it has started, then the body and age of each message. It ends at the end of
its input.
"""

from __future__ import annotations

import os
import sys
import time

from rocketmq.client import PushConsumer, RecvMessage


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def show(message: RecvMessage) -> None:
    """Print a message. After an error, it counts as consumed all the same."""
    body = message.body
    text = body.decode() if isinstance(body, bytes) else body
    age = time.time_ns() // 1_000_000 - message.store_timestamp
    say(f"{text}, {age} ms after it was stored")


def main(name_server: str, topic: str) -> None:
    """Consume until the input ends."""
    consumer = PushConsumer("demo-consumers")
    consumer.set_namesrv_addr(name_server)
    consumer.subscribe(topic, show)
    consumer.start()
    say("ready")
    sys.stdin.read()
    consumer.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
    os._exit(0)  # the library may crash when Python takes it down
