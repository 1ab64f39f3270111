"""What attackers and honest clients send, encoded here, so that it can be wrong."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
import zlib
from collections.abc import Sequence
from typing import Any

from rmqstore_spark.wire.protocol import Code
from tests.support.processes.plainclient import request

MAGIC = -626843481
LOGIN = b"<a login>"
"""Stands for the requests by which a connection logs in."""
PUT = request(Code.BLOCKS, b'{"op":"put"}')
SEND, PULL, QUERY, CREATE_TOPIC, DELETE_TOPIC = 310, 11, 12, 17, 215
ALL_TOPICS, REGISTER, ROUTE, TOPIC_LIST = 21, 103, 105, 206


def record(body: bytes, topic: bytes = b"orders", keys: bytes = b"", flags: int = 0) -> bytes:
    """A record as RocketMQ's CommitLog holds it, but for what the store stamps."""
    properties = b"KEYS\x01" + keys if keys else b""
    host = socket.inet_aton("127.0.0.1") + struct.pack(">i", 10911)
    now = int(time.time() * 1000)
    head = struct.pack(
        ">iIiiqqiq8sq8siq",
        MAGIC, zlib.crc32(body) & 0x7FFFFFFF, 0, 0, 0, 0, flags, now, host, 0, host, 0, 0,
    )  # fmt: skip
    rest = struct.pack(">i", len(body)) + body + struct.pack(">b", len(topic)) + topic
    rest += struct.pack(">h", len(properties)) + properties
    return struct.pack(">i", 4 + len(head) + len(rest)) + head + rest


def block(size: int) -> bytes:
    """A block of about so many bytes, of messages of 1 KiB."""
    one = record(os.urandom(1024))
    return one * max(1, size // len(one))


def read_of_the_log() -> bytes:
    """A request for 64 MB of the log."""
    ranges = {"counts": [16], "offsets": [0] * 16, "lengths": [4 << 20] * 16}
    return request(Code.READ, json.dumps({"paths": ["commitlog/" + "0" * 20], **ranges}).encode())


def frame(code: int, ext: dict[str, str], body: bytes = b"") -> bytes:
    """A request of RocketMQ's protocol, as Java's clients encode it."""
    return request(code, body, 1, extFields=ext, language="JAVA", serializeTypeCurrentRPC="JSON")


def send(body: bytes, topic: str = "orders", keys: str = "") -> bytes:
    """A request to send a message."""
    properties = f"KEYS\x01{keys}" if keys else ""
    ext = {"a": "producers", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0",
           "g": str(int(time.time() * 1000)), "h": "0", "i": properties}  # fmt: skip
    return frame(SEND, ext, body)


def pull(topic: str, offset: int = 0, hold_ms: int = 0) -> bytes:
    """A request for messages."""
    ext = {
        "consumerGroup": "honest", "topic": topic, "queueId": "0", "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": "6" if hold_ms else "4", "commitOffset": "0",
        "suspendTimeoutMillis": str(hold_ms), "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    return frame(PULL, ext)


def query() -> bytes:
    """A request for all messages with a key."""
    ext = {"topic": "large", "key": "k", "maxNum": "64", "beginTimestamp": "0",
           "endTimestamp": str(1 << 62)}  # fmt: skip
    return frame(QUERY, ext)


def create_topic(topic: str) -> bytes:
    """A request to create a topic."""
    ext = {"defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
           "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}  # fmt: skip
    return frame(CREATE_TOPIC, {"topic": topic, **ext})


def register(number: int, topics: Sequence[str]) -> bytes:
    """The registration of a broker with its topics."""
    queues = {"perm": 6, "readQueueNums": 4, "writeQueueNums": 4}
    table = {name: {"topicName": name, **queues} for name in topics}
    wrapper = {"dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": table}
    body = json.dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": []}).encode()
    ext = {"brokerName": f"broker-{number}", "brokerAddr": f"10.0.0.1:{number}",
           "clusterName": "attackers", "brokerId": "0", "haServerAddr": "10.0.0.1:1",
           "compressed": "false", "bodyCrc32": "0"}  # fmt: skip
    return frame(REGISTER, ext, body)


class Line:
    """A connection of RocketMQ's protocol that asks and waits for its answers."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._file = connection.makefile("rb")

    def ask(self, data: bytes) -> tuple[int, dict[str, Any]]:
        """Send a request; returns code and fields of its answer."""
        self._socket.sendall(data)
        return self._answer()

    def ask_all(self, requests: Sequence[bytes]) -> None:
        """Send requests, which succeed, before their answers are read."""
        self._socket.sendall(b"".join(requests))
        for _ in requests:
            code, fields = self._answer()
            assert code == 0, fields

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def _answer(self) -> tuple[int, dict[str, Any]]:
        length, mark = struct.unpack(">iI", self._read(8))
        header = json.loads(self._read(mark & 0xFFFFFF))
        self._read(length - 4 - (mark & 0xFFFFFF))
        return header["code"], header.get("extFields") or {}

    def _read(self, count: int) -> bytes:
        found = self._file.read(count)
        if len(found) < count:
            raise ConnectionError("the connection was closed")
        return found
