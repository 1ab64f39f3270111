"""The C++ client, as a process: sends messages, and consumes them.

    python tests/broker/clients/cpp_client.py NAME_SERVER TOPIC COUNT [ACCESS_KEY SECRET_KEY]
                                              [--orderly ID]

It prints `sent MSGID BODY OFFSET` and `got BODY TIMES KEY TAG QUEUE OFFSET`, sends COUNT messages,
and one for each line that it reads then. At the end of its input it ends. What a body holds decides
what the consumer does: "refused" is to be consumed again if it was not before; with "held" it says
`held BODY` and waits for the line `release BODY`, before `got`. With --orderly the
number at the end of a body chooses its queue, queues are consumed in order, and the client takes
that ID, which is the owner of its locks.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import traceback
from typing import Any

from rocketmq.client import Message, Producer, PushConsumer, RecvMessage, dll, ffi_check
from rocketmq.exceptions import RocketMQException

_LATER = 1
_TRIES = 3


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def main(name_server: str, topic: str, count: int, keys: list[str], orderly: str) -> None:
    """Send and consume until the input ends."""
    producer = Producer("cpp-producers")
    if keys:
        producer.set_session_credentials(*keys, "ALIYUN")
    if orderly:
        ffi_check(dll.SetProducerInstanceName(producer._handle, orderly.encode()))
    producer.set_namesrv_addr(name_server)
    producer.start()
    released, changed = set[str](), threading.Condition()

    def send(body: str) -> None:
        message = Message(topic)
        message.set_keys(f"key-{body}")
        message.set_tags("TagA")
        message.set_body(body)
        if orderly:
            result = producer.send_orderly(message, int(body.rpartition("-")[2]), _TRIES)
        else:
            result = producer.send_sync(message)
        say("sent", result.msg_id, body, result.offset)

    def got(_consumer: object, handle: object) -> int:
        # Below the package's `subscribe`, which cannot say "consume later".
        message = RecvMessage(handle)
        body, times = _text(message.body), message.reconsume_times
        if "held" in body:
            say("held", body)
            with changed:
                changed.wait_for(lambda: body in released)
        words = body, times, _text(message.keys), _text(message.tags)
        say("got", *words, message.queue_id, message.queue_offset)
        return _LATER if "refused" in body and not times else 0

    for number in range(count):
        send(f"body-{number}")
    consumer = PushConsumer("cpp-consumers", orderly=bool(orderly))
    if keys:
        consumer.set_session_credentials(*keys, "ALIYUN")
    if orderly:
        consumer.set_instance_name(orderly)
    consumer.set_namesrv_addr(name_server)
    ffi_check(dll.Subscribe(consumer._handle, topic.encode(), b"*"))
    consumer._register_callback(got)
    consumer.start()
    say("ready")
    for line in sys.stdin:
        first, *more = line.split()
        if more:
            with changed:
                released.update(more)
                changed.notify_all()
        else:
            send(first)
    consumer.shutdown()
    producer.shutdown()


if __name__ == "__main__":
    _parser = argparse.ArgumentParser()
    _parser.add_argument("name_server")
    _parser.add_argument("topic")
    _parser.add_argument("count", type=int)
    _parser.add_argument("keys", nargs="*")
    _parser.add_argument("--orderly", default="", metavar="ID")
    try:
        main(**vars(_parser.parse_args()))
    except RocketMQException:
        traceback.print_exc()
        os._exit(1)  # before the library ends clients: it waits for consumers that stand still
    os._exit(0)  # the library may crash when Python takes it down
