"""Sound inputs for each decoder, which fuzzing begins with, and what can be done to them."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rmqstore_spark.consensus.driver.proposals import placed, term_record
from rmqstore_spark.consensus.driver.wire import (
    WireAskQueueEnds,
    WireMetadataAnswer,
    WireQueueEnds,
    WireVote,
    answer_body,
    request_body,
)
from rmqstore_spark.consensus.driver.wire import encode as write_wire
from rmqstore_spark.consensus.messages import (
    HeartbeatAnswer,
    LeaderHeartbeat,
    LedgerEntry,
    MemberCode,
    Push,
    PushAnswer,
    PushType,
    Vote,
    VoteAnswer,
    VoteVerdict,
)
from rmqstore_spark.ha.frames import encode_header
from rmqstore_spark.layout.checkpoint import Checkpoint
from rmqstore_spark.layout.compression import compress
from rmqstore_spark.layout.index.build import IndexFile
from rmqstore_spark.layout.queues.consumequeue import CONSUME_QUEUE
from rmqstore_spark.layout.record.block import stamp_records
from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command, Form
from rmqstore_spark.remoting.codec.frames import encode_frame
from rmqstore_spark.wire.codec import encode
from rmqstore_spark.wire.messages import StreamCommand
from rmqstore_spark.wire.protocol import Acknowledgement, Code, pieces_head
from rmqstore_spark.wire.reading import OpenRequest, RangesRequest
from tests.broker.broker import batch, heartbeat, message
from tests.broker.transactions.halves import alive
from tests.fuzz.decoders import DECODERS
from tests.namesrv.registering import compressed, registration, topic
from tests.support.processes.plainclient import request as plain
from tests.support.stores.dledger import encode_entry_headers, encode_index_units
from tests.support.stores.golden import RecordReport
from tests.support.stores.records import record_batch

__all__ = ["mutated", "seeds"]

_PROPERTIES = (
    b"KEYS\x01k1 k2\x02TAGS\x01tag\x02UNIQ_KEY\x01C0A80001\x02WAIT\x01true\x02",
    b"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02INNER_MULTI_QUEUE_OFFSET\x013,4\x02",
    b"DELAY\x013\x02REAL_TOPIC\x01t\x02REAL_QID\x010\x02a\x01\xe9\x8d\xb5\x02",
    b"TAGS\x01t\x02__CRC32#\x010123456789\x02",
)


def _message(number: int, *, v6: bool = False) -> RecordReport:
    sys_flag, body = (0, 0, 1, 4)[number % 4], b"body " * number
    if sys_flag == 1:
        body = compress(body, 3)
    return RecordReport(
        topic=("T", "orders_v2-EU")[number % 2], queue_id=number % 3, queue_offset=0,
        physical_offset=0, store_size=0, body_crc=0, flag=number,
        sys_flag=sys_flag, born_timestamp=1_700_000_000_000 + number,
        born_host=("1.2.3.4:5", "[1:0:0:0:0:0:0:2]:6")[number % 2], store_timestamp=0,
        store_host="[0:0:0:0:0:0:0:0]:0" if v6 else "0.0.0.0:0", reconsume_times=0,
        prepared_transaction_offset=0, body=body, body_uncompressed=None,
        properties={}, properties_raw=_PROPERTIES[number % 4], msg_id="", crc_ok=True, raw={},
    )  # fmt: skip


def _blocks() -> Iterator[bytes]:
    for v6 in (False, True):
        for numbers in ((1,), (0, 1, 2), range(9)):
            batch = record_batch([_message(number, v6=v6) for number in numbers])
            yield encode_records(batch).data.tobytes()


def _stretches(lead: int) -> Iterator[bytes]:
    for block, v6 in zip(_blocks(), (False,) * 3 + (True,) * 3, strict=True):
        data = np.frombuffer(block, np.uint8).copy()
        starts = [0]
        while (end := starts[-1] + int.from_bytes(block[starts[-1] :][:4], "big")) < len(block):
            starts.append(end)
        at = np.array(starts, np.int64)
        n = np.arange(len(at), dtype=np.int64)
        stamp_records(data, at, n, at + lead * (n + 1), 1_700_000_000_999, bytes(20 if v6 else 8))
        sizes = np.diff([*starts, len(block)])
        heads = encode_entry_headers(n, 1, at + lead * n, sizes)
        parts = [
            heads[i * lead : (i + 1) * lead] + data[start:][: sizes[i]].tobytes()
            for i, start in enumerate(starts)
        ]
        yield b"".join(parts)


def _index() -> Iterator[bytes]:
    for count in (1, 5, 9):
        file = IndexFile.create(7, 10)
        keys = np.arange(1, count + 1)
        file.insert((keys * 3).astype(np.int32), 100 * keys, 1_700_000_000_000 + 1_000 * keys)
        yield file.encode()


def _kept() -> Iterator[bytes]:
    marker = {"version": 1, "kind": "stream", "name": "q", "number": 3, "rows": 2, "bytes": 9}
    yield json.dumps({**marker, "physicalOffset": 0, "stages": ["a"]}).encode()
    owned = {**marker, "version": 2, "bodyBytes": 5, "identity": "spark"}
    yield json.dumps({**owned, "physicalOffset": 0, "stages": ["a"]}).encode()
    row = ["batch", "app", 7, 2, 300, 0, 200]
    yield json.dumps({"version": 1, "mark": 4, "writers": [row]}).encode()
    row = ["batch", "app", 7, 2, 300, 100, 0, 200, "spark"]
    yield json.dumps({"version": 2, "mark": 4, "writers": [row]}).encode()
    state = {"queues": {"T": {"0": 0}}, "absent": [["U", 1]], "indexEnd": 5, "indexFiles": ["x"]}
    yield json.dumps(state).encode()


def _messages() -> Iterator[bytes]:
    from tests.fuzz.decoders import _KINDS

    for found in (
        OpenRequest(("orders",)), StreamCommand("stage", stage_id="0" * 32),
        RangesRequest(("commitlog/0",), (2,), (0, 5), (10, 20)),
    ):  # fmt: skip
        yield bytes([_KINDS.index(type(found))]) + encode(found)


def _texts(*texts: str) -> Callable[[], list[bytes]]:
    return lambda: [text.encode() for text in texts]


def _bodies() -> Iterator[bytes]:
    for kind in (1, 2, 3):
        yield bytes([kind]) + compress(b"a body " * 60, kind)


def _acknowledgements() -> Iterator[bytes]:
    offsets = np.arange(3, dtype=np.int64)
    yield Acknowledgement(4, "PUT_OK", 3, "", offsets, offsets).to_bytes()
    yield Acknowledgement(4, "MESSAGE_ILLEGAL", 0, "a record").to_bytes()


def _received() -> Iterator[bytes]:
    for bodies in ((b'{"op":"put"}', b"a block"), (b"", b"x" * 3000), (bytes(70_000),)):
        yield b"".join(plain(Code.BLOCK, body, number) for number, body in enumerate(bodies))
    binary = Command(RequestCode.SEND_MESSAGE, {"store": "b"}, b"{}", form=Form.ROCKETMQ)
    yield encode_frame(binary) + plain(Code.FINISH)


def _pieces() -> bytes:
    return pieces_head(np.array([3, 0, 2], np.int64), np.array([False, True, True]))


def _answered() -> Iterator[bytes]:
    head = Command(0, body=b"{}", opaque=3, flag=1)
    body = Command(0, body=_pieces() + b"abcde", opaque=4, flag=1)
    yield encode_frame(head) + encode_frame(body)
    yield encode_frame(Command(1, {"status": "NOT_FOUND"}, remark="no such file", flag=1))


def _frames() -> Iterator[bytes]:
    for form in Form:
        command = Command(105, {"topic": "T", "n": "1"}, b"body", "remark", 7, form=form)
        yield encode_frame(command) + encode_frame(command.answer())


def _registrations() -> Iterator[bytes]:
    plain = registration(["T", topic("U", 8, 4)], filter_servers=["h:2"])
    yield b"\0" + plain.body
    yield b"\1" + json.dumps(json.loads(plain.body)["topicConfigSerializeWrapper"]).encode()
    yield b"\2" + compressed(plain).body


def _sends() -> Iterator[Command]:
    yield message(b"body", i="TAGS\x01t\x02WAIT\x01true\x02TRAN_MSG\x01true", j="3", l="16")
    yield batch([b"one", b"two"], b"KEYS\x01k")
    long = {"topic": "T", "queueId": "-1", "sysFlag": "0", "bornTimestamp": "7", "flag": "1"}
    yield Command(RequestCode.SEND_MESSAGE, {**long, "properties": "DELAY\x013"}, b"body")


def _heartbeats() -> Iterator[Command]:
    yield heartbeat("me", {"T": "a || b", "U": "*"})
    yield alive("me", "pg")
    of_cpp = {"consumeFromWhere": "1", "consumeType": 1, "messageModel": 1, "groupName": "g"}
    yield Command(34, body=json.dumps({"clientID": "c", "consumerDataSet": [of_cpp]}).encode())


def _peers() -> Iterator[bytes]:
    yield b"\0" + request_body(Vote(3, "n1", 40, 2), "G", "n1", "n0")[1]
    yield b"\1" + request_body(LeaderHeartbeat(3, "n1"), "G", "n1", "n0")[1]
    body = placed(term_record(3, "n1", 1_700_000_000_000), 1048)
    entry = LedgerEntry(41, 3, 1000, len(body) + 48, body)
    for kind, entries in ((PushType.COMPARE, (entry,)), (PushType.APPEND, (entry, entry))):
        push = Push(kind, 3, "n1", 41, 41, 40, 5, entries)
        yield b"\2" + request_body(push, "G", "n1", "n0")[1]

    for bad in (placed(body, 7), b"no record", b"\0" * 4096):  # which none of these is here
        other = LedgerEntry(1 << 40, 3, 1000, len(bad) + 48, bad)
        push = Push(PushType.TRUNCATE, 3, "n1", 1 << 40, 1 << 40, 1 << 41, 1 << 40, (other,))
        yield b"\2" + request_body(push, "G", "n1", "n0")[1]


def _peer_answers() -> Iterator[bytes]:
    vote = WireVote(group="G", local_id="n0", remote_id="n1", term=3)
    yield b"\0" + answer_body(VoteAnswer(3, VoteVerdict.ACCEPT), vote)
    yield b"\1" + answer_body(HeartbeatAnswer(MemberCode.SUCCESS, 3), vote)
    for end in (40, 1 << 40):  # also one beyond its log
        answer = PushAnswer(PushType.COMMIT, MemberCode.SUCCESS, 3, -1, 0, end)
        yield b"\2" + answer_body(answer, vote)


def _leaders() -> Iterator[bytes]:
    peers = {"n0": "10.0.0.1:40911", "n1": "[::1]:40912"}
    yield write_wire(
        WireMetadataAnswer(
            group="G", leader_id="n1", term=3, peers=peers, broker_addr="10.0.0.1:10911"
        )
    )


def _asked_queue_ends() -> Iterator[bytes]:
    yield write_wire(WireAskQueueEnds(group="G", remote_id="n1"))
    yield write_wire(WireAskQueueEnds(group="G", remote_id="n1", topic="orders", queue_id=7))


def _queue_ends() -> Iterator[bytes]:
    for ends in ({"orders": {"0": 5, "1": 1 << 40}}, {"orders": {"x": 1}}, {"orders": {"-1": 1}}):
        yield write_wire(
            WireQueueEnds(group="G", known=True, ends=ends, log_end=1 << 30, is_last=True)
        )


def _tables() -> Iterator[bytes]:
    data = {"brokerAddrs": {"0": "h:1", "1": "[::1]:2"}, "brokerName": "b", "cluster": "c"}
    servers = {"h:1": ["rmq://h:3"], "x": []}
    for number, table in enumerate(
        (
            {"brokerDatas": [data], "filterServerTable": servers, "queueDatas": []},
            {"brokerAddrTable": {"b": data}, "clusterAddrTable": {"c": ["b"]}},
            {"topicConfigTable": {"t": {"readQueueNums": 4, "perm": 6, "order": False}}},
            {"topicList": ["t", "u"]},
        )
    ):
        yield bytes([number]) + json.dumps(table).encode()


_OF: dict[str, Callable[[], Any]] = {
    "records": lambda: _stretches(0),
    "stamped": lambda: _stretches(0),
    "replicated": lambda: [
        encode_header(at, len(data)) + data + encode_header(at + len(data), 0)
        for at, data in enumerate(_stretches(0))
    ],
    "dledger": lambda: _stretches(48),
    "dledger_unit": lambda: [encode_index_units([0], [100], [0], 1)],
    "dledger_checkpoint": _texts("#time\ncommittedIndex=12\n", "endIndex=3\ncommittedIndex=-1\n"),
    "queue": lambda: [
        CONSUME_QUEUE.encode(np.arange(4), np.full(4, 100), np.arange(4)).tobytes() + bytes(25)
    ],
    "extension": lambda: [struct.pack(">hqqh3shqqh", 23, 1, 3, 3, b"abc", 20, 2, 4, 0)],
    "index": _index,
    "index_header": _index,
    "index_insert": lambda: [bytes(40), bytes(range(40))],
    "checkpoint": lambda: [Checkpoint(1, 2, 3).encode()],
    "properties": lambda: [3 * properties for properties in _PROPERTIES],
    "block": _blocks,
    "body": _bodies,
    "fastjson": _texts('{"offsetTable":{"T@g":{0:5,1:6}},"a":[1,-2.5e3,null,true,"\\u00e9"]}'),
    "msg_id": _texts("0102030400002A9F0000000000000001", "0" * 56),
    "endpoint": _texts("rmq://h:1,rmqs://[::1]:2", "unix:/run/s"),
    "settings": _texts("# c\nbrokerName=a\\u00e9\nstorePathRootDir: /x\\\n  y\n"),
    "accounts": _texts(
        "accounts:\n- accessKey: account-1\n  secretKey: 12345678\n  admin: true\n"
        "  topicPerms: [a=PUB|SUB]\nglobalWhiteRemoteAddresses: [10.*, '::1']\n"
    ),
    "message": _messages,
    "acknowledgement": _acknowledgements,
    "ledger": _kept,
    "received": _received,
    "answered": _answered,
    "pieces": lambda: [_pieces()[4:]],
    "frames": _frames,
    "registration": _registrations,
    "route": _tables,
    "sends": lambda: map(encode_frame, _sends()),
    "heartbeat": lambda: [request.body for request in _heartbeats()],
    "marked": lambda: _stretches(0),
    "peers": _peers,
    "leaders": _leaders,
    "queue_ends": _queue_ends,
    "asked_queue_ends": _asked_queue_ends,
    "peer_answers": _peer_answers,
    "pulled": lambda: [
        kind + data for data in _stretches(0) for kind in (b"\x00", b"\x01", b"\x02")
    ],
}


def seeds(decoder: Callable[[bytes], Any]) -> list[bytes]:
    """Sound inputs of a decoder, and the empty one."""
    return [*_OF[decoder.__name__](), b""]


def mutated(data: bytes, given: random.Random) -> bytes:
    """The same bytes with one to four changes."""
    found = bytearray(data)
    for _ in range(given.randint(1, 4)):
        at = given.randrange(len(found) + 1)
        match given.randrange(6):
            case 0 if found:
                found[at % len(found)] ^= 1 << given.randrange(8)
            case 1 if found:
                found[at % len(found)] = given.choice((0, 1, 2, 0x20, 0x7F, 0x80, 0xFF))
            case 2:  # a number at a boundary
                width = given.choice((1, 2, 4, 8))
                edge = given.choice((0, 1, -1, 1 << (8 * width - 1), (1 << (8 * width - 1)) - 1))
                found[at : at + width] = (edge % (1 << 8 * width)).to_bytes(width, "big")
            case 3:
                del found[at : at + given.choice((1, 4, 20, len(found)))]
            case 4:
                found[at:at] = given.randbytes(given.choice((1, 4, 20)))
            case _:
                found[at:at] = found[given.randrange(len(found) + 1) :][:100]
    return bytes(found)


assert set(_OF) == {decoder.__name__ for decoder in DECODERS}
