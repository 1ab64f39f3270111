"""Plain requests are stored without being decoded: as all others are, and with the same answers."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.broker.faces.remoting.lanes.sending import SendRequests
from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.kernel.reference import plain
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.lookup import query_by_key
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command, Form
from rmqstore_spark.remoting.codec.frames import FrameReader, encode_frame
from rmqstore_spark.remoting.codec.plain import PlainSend, arrived
from rmqstore_spark.verify import verify
from tests.broker.broker import LONG_NAMES, Served, batch, broker, message
from tests.support.processes.ports import free_port
from tests.support.waiting import PATIENCE, eventually

BORN = "1700000000000"
CASES: tuple[dict[str, Any], ...] = (
    {},
    {"i": "KEYS\x01k\x02TAGS\x01t\x02WAIT\x01true\x02UNIQ_KEY\x01U"},
    {"i": "\x02\x02a\x01b\x02", "h": "-7", "j": "3", "queue": 3},
    {"i": "CLUSTER\x01mine\x02WAITER\x01x", "f": "256"},
    {"i": 'quoted\x01"\\/\b\t\x00', "f": "48"},
    {"l": "16", "k": "false", "m": "false", "n": "broker", "d": "8"},
    {"i": ""},
    {"i": "DELAY\x02WAIT\x01true"},
    {"i": "k\x01" + "v" * 20_000},
)
BATCHES: tuple[tuple[list[bytes], bytes, dict[str, Any]], ...] = (
    ([b"a", b"b", b"c"], b"TAGS\x01t\x02", {}),
    ([b"alone"], b"", {"i": "WAIT\x01true\x02CLUSTER\x01x\x02"}),
    ([b"", b"\xff"], b"k\x01\xff\x02\x02", {"e": "2", "j": "5", "i": "a\x01b"}),
    ([b"x" * 100] * 300, b"KEYS\x01k", {"i": "shared\x01" + "v" * 1000}),
)


def _asked(served: Served, commands: list[Command]) -> list[Command]:
    async def run() -> list[Command]:
        async with await RemotingClient.connect(served.address, seconds=30) as client:
            return [await client.ask(each, 30) for each in commands]

    return asyncio.run(run())


def _stored(path: Path) -> list[dict[str, Any]]:
    with Store.open(path) as store:
        rows = [row for part in store.scan() for row in part.to_pylist()]
        assert verify(store).ok  # queues and index are as the log says
    for row in rows:
        for given in ("brokerName", "storeTimestamp", "bornHost"):
            del row[given]
    return rows


def _odd(command: Command) -> Command:
    """The same request, with a remark: that of a header which is decoded."""
    command.remark = "odd"
    return command


def _long_named(command: Command) -> Command:
    """The same request with the names and the code that clients in C++ use."""
    ext = {LONG_NAMES[name]: value for name, value in command.ext.items() if name in LONG_NAMES}
    return replace(command, code=RequestCode.SEND_MESSAGE, ext=ext)


def _without_compiled_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    singles = "write_send", "stamp_record", "write_answer"
    for name in ("plain_sends", "write_sends", "write_answers", *singles):
        monkeypatch.setattr(kernel.active, name, getattr(plain, name))


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize(
    ("flush", "is_compiled"), [("ASYNC_FLUSH", True), ("SYNC_FLUSH", True), ("ASYNC_FLUSH", False)]
)
def test_both_ways_store_and_answer_the_same(
    tmp_path: Path, form: Form, flush: str, is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_compiled:
        _without_compiled_kernel(monkeypatch)
    found, port = [], free_port()
    for name, way in (("plain", lambda command: command), ("odd", _odd)):
        singles = [message(b"body", **{"g": BORN, **case}) for case in CASES]
        commands = [way(each) for each in (*singles, *map(_long_named, singles))]
        commands += [way(batch(bodies, own, **more)) for bodies, own, more in BATCHES]
        for each in commands:
            each.form = form
            frame = memoryview(encode_frame(each))
            assert isinstance(arrived(frame), PlainSend) == (name == "plain")
        path = tmp_path / name
        with broker(path, flush_disk_type=flush, listen_port=port) as served:
            answers = _asked(served, [message(b"first"), *commands])[1:]
            assert [each.remark for each in answers] == [None] * len(commands)
        told = [(each.code, each.remark, each.ext, each.body, each.form) for each in answers]
        found.append((told, _stored(path)[1:]))
    assert [code for code, *_ in found[0][0]] == [0] * (2 * len(CASES) + len(BATCHES))
    assert found[0] == found[1]
    times = [int(case.get("j", 0)) for case in CASES * 2]
    times += [int(more.get("j", 0)) for bodies, _, more in BATCHES for _ in bodies]
    assert [row["reconsumeTimes"] for row in found[0][1]] == times


REFUSED: tuple[dict[str, Any], ...] = (
    {"topic": "new", "c": "Nope"},
    {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"},
    {"topic": "wrong name"},
    {"topic": "closed"},
    {"queue": 99},
    {"i": "k\x01" + "v" * 40_000},
    {"f": "x"},
    {"body": b"x" * 2000},
    {"f": "1"},  # a body that is not compressed
)
REFUSED_BATCHES: tuple[Command, ...] = (
    batch([b"a", b"b"], b"TRAN_MSG\x01true"),
    batch([b"a", b"b"], e="99"),
    batch([b"x" * 600] * 2),
    Command(320, batch([b"a"]).ext, b"no batch"),
    Command(320, batch([b"a"]).ext, b""),
)


def test_what_is_refused_is_refused_in_the_same_words(tmp_path: Path) -> None:
    found, port = [], free_port()
    for name, way in (("plain", lambda command: command), ("odd", _odd)):
        commands = []
        for case in REFUSED:
            more = {"g": BORN, **case}
            body = more.pop("body", b"b")
            commands.append(way(message(body, more.pop("topic", "orders"), **more)))
        commands += [way(replace(each)) for each in REFUSED_BATCHES]
        with broker(tmp_path / name, max_message_size=1000, listen_port=port) as served:
            served.store.create_topic("closed", perm=4)
            _asked(served, [message(b"first")])
            answers = _asked(served, commands)
            assert served.store.put_messages == 1
        told = [(each.code, each.ext, (each.remark or "").partition("Producer:")[0])
                for each in answers]  # fmt: skip
        found.append(told)
    assert all(code for code, *_ in found[0])
    assert found[0] == found[1]


def test_queues_are_filled_before_a_wait_for_the_disk(tmp_path: Path) -> None:
    """Consumers of others do not wait for it; without one, the answer comes first."""
    with broker(tmp_path / "store", flush_disk_type="SYNC_FLUSH") as served:
        for count in range(1, 21):
            _asked(served, [message(b"x", "t")])
            assert served.store.stats()["queues"]["t"]["0"][1] == count


def test_queues_are_filled_although_a_send_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the messages that were answered before."""
    with broker(tmp_path / "store") as served:
        _asked(served, [message(b"first", "t")])
        store_all = SendRequests._store_all

        def fail(self: SendRequests, *given: Any) -> None:
            store_all(self, *given)
            raise MemoryError

        monkeypatch.setattr(SendRequests, "_store_all", fail)
        assert [each.code for each in _asked(served, [message(b"x", "t")])] == [0]
        eventually(lambda: served.store.stats()["queues"]["t"]["0"][1] == 2)


@pytest.mark.parametrize("are_batches", [False, True])
def test_messages_of_a_connection_keep_their_order(are_batches: bool, tmp_path: Path) -> None:
    """Also where plain requests, batches and others come together."""
    texts = ["a", "über", "b", "c", "\x7f", "d"] * 20
    singles = [message(text.encode(), "t", i=f"k\x01{text}") for text in texts]
    batches = [batch([b"%d" % number, b"%d'" % number], b="t") for number in range(len(texts))]
    requests, wanted = singles, texts
    if are_batches:
        requests = list(chain.from_iterable(zip(batches, singles, strict=True)))
        wanted = [one for n, text in enumerate(texts) for one in (f"{n}", f"{n}'", text)]
    with broker(tmp_path / "store") as served:
        _asked(served, [message(b"first", "t")])
        host, _, port = served.address.rpartition(":")
        with socket.create_connection((host, int(port)), PATIENCE) as peer:
            peer.sendall(b"".join(map(encode_frame, requests)))
            reader, answers = FrameReader(), list[Command]()
            while len(answers) < len(requests):
                answers += reader.feed(peer.recv(1 << 16))[0]
    assert {each.code for each in answers} == {0}
    found = [row["body"].decode() for row in _stored(tmp_path / "store")][1:]
    assert found == wanted


def test_a_turn_may_send_to_many_queues(tmp_path: Path) -> None:
    """Of topics with different numbers of them; their messages have tags and keys."""
    queues = [(name, queue) for name, count in (("a", 1), ("b", 3), ("c", 2))
              for queue in range(count)]  # fmt: skip
    with broker(tmp_path / "store") as served:
        for name, count in (("a", 1), ("b", 3), ("c", 2)):
            served.store.create_topic(name, write_queue_nums=count, read_queue_nums=count)
        host, _, port = served.address.rpartition(":")
        with socket.create_connection((host, int(port)), PATIENCE) as peer:
            for number in range(4):
                frames = [
                    encode_frame(
                        message(
                            b"%d" % number, name, queue,
                            i=f"TAGS\x01{name}\x02KEYS\x01{name}{queue} {number}",
                        )
                    )
                    for name, queue in queues
                ]  # fmt: skip
                peer.sendall(b"".join(frames))
                reader, answers = FrameReader(), list[Command]()
                while len(answers) < len(queues):
                    answers += reader.feed(peer.recv(1 << 16))[0]
                told = [(each.ext["queueId"], each.ext["queueOffset"]) for each in answers]
                assert told == [(str(queue), str(number)) for _, queue in queues]
    with Store.open(tmp_path / "store") as store:
        found = [row for part in store.scan() for row in part.to_pylist()]
        of = {(row["topic"], row["queueId"], row["queueOffset"]): row["tags"] for row in found}
        assert of == {(name, queue, n): name for name, queue in queues for n in range(4)}
        assert verify(store).problems == ()
        keyed = query_by_key(store, "b", "b1").to_pylist()
        assert [row["queueOffset"] for row in keyed] == [0, 1, 2, 3]


def test_who_resets_a_connection_fails_no_other(tmp_path: Path) -> None:
    frame = encode_frame(message(b"x", "t"))
    with broker(tmp_path / "store") as served:
        _asked(served, [message(b"first", "t")])
        host, _, port = served.address.rpartition(":")
        ended = threading.Event()

        def reset() -> None:
            while not ended.is_set():
                with socket.create_connection((host, int(port)), PATIENCE) as peer:
                    peer.sendall(frame)
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        thread = threading.Thread(target=reset)
        thread.start()
        try:
            answers = _asked(served, [message(b"y", "t")] * 300)
        finally:
            ended.set()
            thread.join()
    assert {each.code for each in answers} == {0}


def test_topics_that_change_are_looked_up_again(tmp_path: Path) -> None:
    with broker(tmp_path / "store") as served:
        store = served.store
        store.create_topic("t", write_queue_nums=2)

        def code(queue: int) -> int:
            (answer,) = _asked(served, [message(b"x", "t", queue)])
            return answer.code

        assert (code(1), code(2)) == (0, ResponseCode.SYSTEM_ERROR)
        store.update_topic("t", write_queue_nums=3)
        assert code(2) == 0
        store.update_topic("t", perm=4)
        assert code(0) == ResponseCode.NO_PERMISSION
        store.update_topic("t", perm=6)
        assert code(0) == 0
        store.reconfigure(replace(store.config, broker_permission=4))
        assert code(0) == ResponseCode.NO_PERMISSION
        store.reconfigure(replace(store.config, broker_permission=6))
        store.delete_topic("t")
        (answer,) = _asked(served, [message(b"x", "t", c="Nope")])
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST


def test_without_the_compiled_kernel_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _without_compiled_kernel(monkeypatch)
    with broker(tmp_path / "store") as served:
        answers = _asked(served, [message(b"first"), message(b"second", i="KEYS\x01k")])
    assert [each.code for each in answers] == [0, 0]
    assert [row["body"] for row in _stored(tmp_path / "store")] == [b"first", b"second"]
