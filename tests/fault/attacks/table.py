"""The table of attacks: what is done, to what, and what must come of it.

All of each must leave the processes below `MOST_DURING` and `MOST_AFTER` bytes, and honest clients
must be served meanwhile.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
import zlib
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

from rmqstore_spark.wire.protocol import Code
from tests.fault.attacks import frames
from tests.fault.attacks.driver import Target
from tests.fault.attacks.frames import LOGIN, PUT
from tests.fault.attacks.means import Attack, hold, in_threads, streams
from tests.support.processes.plainclient import head_of, request

_MIB: Final = 1 << 20
_ANSWERED: Final = "all were answered"
_KEY: Final = "bomb"


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        name: of the attack.
        what: is done, in words.
        does: it, and says what came of it.
        told: how that must begin.
        on: what is attacked, as `driver.attacked` has it.
    """

    name: str
    what: str
    does: Attack
    told: str = ""
    on: str = "store"


def _stage() -> dict[str, Any]:
    return {"op": "stage", "stageId": uuid.uuid4().hex}


def _open_without_a_login(target: Target, _until: float) -> str:
    with target.client("") as client:
        return client.ask(Code.OPEN, bytes(target.count(300) << 20)).status or "accepted"


def _guess(target: Target, until: float) -> str:
    for number in count():
        with target.client("", 5) as client:
            status = client.log_in(f"a-secret-{time.monotonic_ns()}-{number}").status
        assert status == "UNAUTHENTICATED", status
        if time.monotonic() > until:
            break
    return "wrong"


def _send_stray_blocks(target: Target, until: float) -> str:
    told = set()
    while time.monotonic() < until:
        with target.client() as client:
            told.add(client.ask(Code.BLOCK, bytes(30 * _MIB)).status)
    return ", ".join(sorted(told))


def _go_on_when_refused(target: Target, until: float) -> str:
    data = request(Code.BLOCK, bytes(_MIB)) * 8
    with target.client() as client:
        client.begin(op="drop")
        while time.monotonic() < until:
            client.socket.sendall(data)
        return client.answer().status


def _ask_next_to_nothing(target: Target, until: float) -> str:
    with target.client() as client:
        while time.monotonic() < until:
            client.ask(Code.INFO, b'{"path":"checkpoint"}')
    return "answered"


def _half_requests(target: Target) -> str:
    host, _, port = target.metrics.rpartition(":")
    answered = []
    with ExitStack() as opened:
        for _ in range(30):
            held = opened.enter_context(socket.create_connection((host, int(port)), 10))
            held.sendall(b"GET /met")
        until = time.monotonic() + 12 * target.scale
        while time.monotonic() < until:
            begin = time.monotonic()
            answered.append((_health(host, int(port)), time.monotonic() - begin))
            time.sleep(0.1)
    refused = sum(1 for status, _ in answered if status != 200)
    slowest = max(seconds for _, seconds in answered)
    return f"{refused} of {len(answered)} probes not answered 200, slowest {slowest:.1f} s"


def _health(host: str, port: int) -> int:
    with suppress(OSError), socket.create_connection((host, port), 5) as connection:
        connection.settimeout(5)
        connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        answer = connection.recv(64)
        return int(answer.split()[1]) if answer.startswith(b"HTTP/") else 0
    return 0


def _commit_under_anothers_name(target: Target) -> str:
    writer = {"kind": "stream", "name": "a-query-of-others", "number": (1 << 63) - 1}
    with target.client() as client:
        answer = client.ask(Code.COMMIT, {"writer": writer, "stages": []})
        return f"refused: {answer.status}" if answer.status else "COMMITTED"


def _put_unreadable_records(target: Target) -> str:
    broken = frames.record(b"not compressed at all", flags=0x301)
    negative = bytearray(frames.record(b"a body"))
    struct.pack_into(">i", negative, 4 + 68, -1)
    with target.client() as client:
        client.begin(op="put")
        told = [client.put(bytes(one), number) for number, one in enumerate((broken, negative))]
    return ", ".join(told)


def _ask_for_bombs(target: Target) -> str:
    packed = zlib.compress(bytes(16 * _MIB), 9)
    bomb = frames.record(packed, keys=_KEY.encode(), flags=0x301)
    with target.client() as client:
        client.begin(op="put")
        for number in range(10):
            client.put(bomb * 8, number)
        client.send(request(Code.FINISH))
        client.ask(Code.FLUSH, b"{}")

    def ask(target: Target, _until: float) -> str:
        with target.client() as client:
            query = {"topic": "orders", "key": _KEY, "maxNum": 1024}
            return client.ask(Code.QUERY, query).status or "answered"

    return in_threads(16, ask, is_scaled=True)(target)


def _pull_and_go(target: Target) -> str:
    until = time.monotonic() + target.seconds
    while time.monotonic() < until:
        hold("broker", 40, frames.pull("large") * 3000, seconds=2.0)(target)
    return "gone"


def _hold_pulls(target: Target) -> str:
    with target.line(target.broker) as line:
        end = int(line.ask(frames.pull("large"))[1]["maxOffset"])
        asked = frames.pull("large", end, hold_ms=60_000) * 64
        # All of them wait when the message comes.
        coming = threading.Timer(1, line.ask, [frames.send(bytes(4_000_000), "large")])
        coming.start()
        told = hold("broker", 200, asked)(target)
        coming.join()
    return told


def _list_many_topics(target: Target) -> str:
    with target.line(target.names) as line:
        line.ask(frames.register(1, [f"topic-{n:06}" for n in range(50_000)]))
        return hold("names", 200, frames.frame(frames.TOPIC_LIST, {}) * 2000)(target)


_NUMBERS: Final = count(2)


def _register_many_topics(target: Target, _until: float) -> str:
    number = next(_NUMBERS)
    names = [f"topic-{number}-{n:06}" for n in range(50_000)]
    with suppress(OSError), target.line(target.names) as line:
        line.ask(frames.register(number, names))
    return "registered"


def _delete_many_topics(target: Target) -> str:
    topics = [f"short-{number}" for number in range(target.count(4000))]
    with target.line(target.broker) as line:
        line.ask_all([frames.create_topic(topic) for topic in topics])
        for topic in topics:
            line.ask(frames.send(b"x", topic))
        line.ask_all([frames.frame(frames.DELETE_TOPIC, {"topic": topic}) for topic in topics])
    return "deleted"


def _leave_at_once(target: Target) -> str:
    with ExitStack() as held:
        for number in range(target.count(1000)):
            line = held.enter_context(target.line(target.names))
            topics = [f"topic-{number}-{n:06}" for n in range(400)]
            line.ask(frames.register(number + 2, topics))
    time.sleep(target.seconds / 4)
    return "left"


def _come(name: str, target: Target) -> str:
    """Let a crowd come, which is a process of its own; what failed of what it asked."""
    address = target.broker.removeprefix("rmq://")
    command = [sys.executable, "-m", "tests.fault.attacks.crowds", name, address]
    done = subprocess.run(
        [*command, str(target.scale)], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout or _ANSWERED


def _half(whole: bytes) -> bytes:
    return whole[: len(whole) // 2]


_BLOCK_1: Final = LOGIN + PUT + head_of(Code.BLOCK, _MIB)
_BLOCK_30: Final = LOGIN + PUT + head_of(Code.BLOCK, 30 * _MIB)
_HEADERS: Final = struct.pack(">iI", 1 << 30, 0xFFFFFF) + bytes(_MIB)
_REGISTRATION: Final = frames.frame(frames.REGISTER, {"brokerName": "b"}, bytes(8 * _MIB))
_REFUSED: Final = "MESSAGE_ILLEGAL"

ATTACKS: Final[tuple[Row, ...]] = (
    Row("without_a_login", "8 clients that have not logged in send 300 MB each in one action",
        in_threads(8, _open_without_a_login), "8 x UNAUTHENTICATED"),
    Row("guessed_secrets",
        "32 clients try one secret after the other, each on a connection of its own",
        in_threads(32, _guess), "32 x wrong"),
    Row("silent_connections", "2,000 connections that do nothing",
        hold("store", 2000, b"")),
    Row("half_frames", "1,000 connections that have logged in send half a frame each",
        hold("store", 1000, LOGIN + head_of(Code.STATS, 2)[:40])),
    Row("headers_without_end", "200 connections announce headers of 16 MB, and send them",
        hold("store", 200, _HEADERS)),
    Row("announced_bodies",
        "400 connections announce requests of 4 MB, and of 1 MB, and send none of them",
        hold("store", 400, LOGIN + head_of(Code.COMMIT, 4 * _MIB),
             LOGIN + head_of(Code.END_TRANSACTIONS, _MIB), more=b"x")),
    Row("announced_blocks",
        "250 streams announce blocks of 1 MB, send none, and begin again when they are refused",
        hold("store", 250, _BLOCK_1, takes=1 << 16, is_again=True)),
    Row("bodies_but_for_a_byte",
        "250 streams send blocks of 1 MB but for the last byte, and begin again when refused",
        hold("store", 250, _BLOCK_1 + bytes(_MIB - 1), takes=1 << 16, is_again=True)),
    Row("slow_senders", "40 streams begin blocks of 30 MB, and send a byte now and then",
        hold("store", 40, _BLOCK_30, more=b"x", is_scaled=False)),
    Row("stray_blocks", "16 clients send blocks of 30 MB outside of a stream, again and again",
        in_threads(16, _send_stray_blocks), f"16 x {_REFUSED}"),
    Row("refused_streams_that_go_on",
        "32 clients send blocks on and on in a stream that was refused",
        in_threads(32, _go_on_when_refused), f"32 x {_REFUSED}"),
    Row("tiny_requests", "64 clients ask for next to nothing, on and on",
        in_threads(64, _ask_next_to_nothing), "64 x answered"),
    Row("unread_answers",
        "250 clients send 5,000 requests each before they read an answer, which they never do",
        hold("store", 250, LOGIN + request(Code.STATS, b"{}") * 5000)),
    Row("stages_of_32", "32 tasks stage 10 blocks of 4 MB each, as a sink does",
        streams(32, 10, 4 * _MIB, _stage)),
    Row("stages_of_100", "100 tasks stage 10 blocks of 4 MB each",
        streams(100, 10, 4 * _MIB, _stage)),
    Row("stages_of_200", "200 tasks stage 10 blocks of 4 MB each",
        streams(200, 10, 4 * _MIB, _stage)),
    Row("large_puts", "16 clients put 4 blocks of 30 MB each",
        streams(16, 4, 30 * _MIB, lambda: {"op": "put"})),
    Row("large_stages", "48 tasks stage 4 blocks of 30 MB each",
        streams(48, 4, 30 * _MIB, _stage)),
    Row("idle_streams", "256 streams that send nothing, each with a connection of its own",
        hold("store", 256, LOGIN + PUT, is_scaled=False)),
    Row("idle_readers", "200 clients ask for 64 MB of the log each, and take nothing",
        hold("store", 200, LOGIN + frames.read_of_the_log())),
    Row("slow_readers", "200 clients ask for 64 MB of the log each, and take a little now and then",
        hold("store", 200, LOGIN + frames.read_of_the_log(), takes=32 << 10)),
    Row("half_requests",
        "30 clients of the metrics' port send half a request each; supervisors ask for its health",
        _half_requests, "0 of "),
    Row("vanishing_batch",
        "Commits nothing under the id of another's query, with the highest number there is",
        _commit_under_anothers_name, f"refused: {_REFUSED}"),
    Row("unreadable_records",
        "Puts records that no reader takes: a body that does not unpack, a negative reconsumeTimes",
        _put_unreadable_records, f"{_REFUSED}, {_REFUSED}"),
    Row("bombs", "Messages that unpack to 4,000 times their size, asked for by 16 clients at once",
        _ask_for_bombs),
    # On the ports of RocketMQ's protocol.
    Row("half_sends", "1,000 connections send half a message of 8 MiB each to the broker",
        hold("broker", 1000, _half(frames.send(bytes(8 * _MIB)))), on="ports"),
    Row("half_registrations",
        "1,000 connections send half a registration of 8 MiB each to the name server",
        hold("names", 1000, _half(_REGISTRATION)), on="ports"),
    Row("half_small_sends",
        "4,000 connections send a message of 64 KiB each to the broker, but for the last byte",
        hold("broker", 4000, frames.send(bytes(64 << 10))[:-1]), on="ports"),
    Row("slow_sends", "400 connections begin messages of 4 MiB, and send a byte now and then",
        hold("broker", 400, frames.send(bytes(4 * _MIB))[: 1 << 16], more=b"x"), on="ports"),
    Row("unread_pulls",
        "40 connections ask 3,000 times for a message of 4 MiB each, and read nothing",
        hold("broker", 40, frames.pull("large") * 3000), on="ports"),
    Row("unread_small_pulls",
        "200 connections ask 5,000 times for a message of 1 KiB each, and read nothing",
        hold("broker", 200, frames.pull("small") * 5000), on="ports"),
    Row("pulls_of_the_gone",
        "40 connections ask 3,000 times for a message of 4 MiB each, and go, again and again",
        _pull_and_go, on="ports"),
    Row("held_pulls",
        "200 connections wait with 64 pulls each for a message of 4 MiB, and do not read it",
        _hold_pulls, on="ports"),
    Row("unread_queries",
        "40 connections ask 500 times for all messages with a key, and read nothing",
        hold("broker", 40, frames.query() * 500), on="ports"),
    Row("unread_tables",
        "40 connections ask the broker 2,000 times for all topics, and read nothing",
        hold("broker", 40, frames.frame(frames.ALL_TOPICS, {}) * 2000), on="ports"),
    Row("unread_lists",
        "200 connections ask the name server 2,000 times for all 50,000 topics, and read nothing",
        _list_many_topics, on="ports"),
    Row("deletions",
        "A client creates 4,000 topics, sends to each, and deletes all without waiting",
        _delete_many_topics, on="ports"),
    Row("large_registrations",
        "100 connections register 50,000 topics of their own each, of which 200,000 are taken",
        in_threads(100, _register_many_topics, is_scaled=True), on="ports"),
    Row("leaving_brokers",
        "1,000 brokers with 400 topics of their own leave the name server at once",
        _leave_at_once, on="ports"),
    # Honest, but very many at once: nobody may be refused.
    Row("new_topics", "300 clients send to a new topic each, at once",
        partial(_come, "new_topics"), _ANSWERED, "broker"),
    Row("new_groups", "500 consumers of a new group each send their first heartbeats at once",
        partial(_come, "new_groups"), _ANSWERED, "broker"),
    Row("joining_members",
        "2,500 consumers join a group at once, and look who the others are when they hear of them",
        partial(_come, "joining_members"), _ANSWERED, "broker"),
    Row("leaving_members", "2,500 consumers of a group lose their connections at once; 100 stay",
        partial(_come, "leaving_members"), _ANSWERED, "broker"),
)  # fmt: skip
