"""The C++ client, as a process: sends messages, and consumes them.

    python tests/broker/cpp_client.py NAME_SERVER TOPIC COUNT [ACCESS_KEY SECRET_KEY]

It prints `sent MSGID BODY` and `got BODY TIMES KEY TAG`, sends COUNT messages, and
one for each line that it reads then. At the end of its input it ends.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from rocketmq.client import Message, Producer, PushConsumer, RecvMessage, dll, ffi_check

_LATER = 1


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main(name_server: str, topic: str, count: int, keys: list[str]) -> None:
    """Send and consume until the input ends."""
    producer = Producer("cpp-producers")
    if keys:
        producer.set_session_credentials(*keys, "ALIYUN")
    producer.set_namesrv_addr(name_server)
    producer.start()
    lock, refused = threading.Lock(), set()

    def send(body: str) -> None:
        message = Message(topic)
        message.set_keys(f"key-{body}")
        message.set_tags("TagA")
        message.set_body(body)
        say("sent", producer.send_sync(message).msg_id, body)

    def got(_consumer: object, handle: object) -> int:
        # Below the package's `subscribe`, which cannot say "consume later".
        message = RecvMessage(handle)
        body = _text(message.body)
        with lock:
            is_refused = body == "refused" and body not in refused
            refused.add(body)
            words = body, message.reconsume_times, _text(message.keys), _text(message.tags)
            say("got", *words)
        return _LATER if is_refused else 0

    for number in range(count):
        send(f"body-{number}")
    consumer = PushConsumer("cpp-consumers")
    consumer.set_namesrv_addr(name_server)
    if keys:
        consumer.set_session_credentials(*keys, "ALIYUN")
    ffi_check(dll.Subscribe(consumer._handle, topic.encode(), b"*"))
    consumer._register_callback(got)
    consumer.start()
    say("ready")
    for line in sys.stdin:
        send(line.strip())
    consumer.shutdown()
    producer.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    os._exit(0)  # the library may crash when Python takes it down
