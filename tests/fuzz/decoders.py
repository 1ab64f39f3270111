"""One harness over everything that decodes: what comes from files, and what comes from clients.

`check` gives some bytes to one decoder, with the compiled kernel and with the plain one. Each must
decode them or refuse them by the error that it declares, and both must do the same. Any other
exception, a crash, or a difference is a finding.
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rmqstore_spark.base.types import CommitRequest, StageInfo, WriterId
from rmqstore_spark.broker.acl.files import parse_accounts
from rmqstore_spark.broker.core.refusal import Refusal
from rmqstore_spark.client.brokers.pulling import PulledPiece
from rmqstore_spark.client.link import Link
from rmqstore_spark.consensus.driver.checks import are_records
from rmqstore_spark.consensus.driver.wire import (
    DLedgerRequest,
    WireAskQueueEnds,
    WireMetadataAnswer,
    WireQueueEnds,
    answer_of,
    request_of,
)
from rmqstore_spark.consensus.driver.wire import decode as read_wire
from rmqstore_spark.consensus.driver.wire import encode as write_wire
from rmqstore_spark.consensus.messages import LeaderHeartbeat, Push, PushType, Vote
from rmqstore_spark.engine.append.stamped import check_stamped
from rmqstore_spark.engine.batches.ledger import Ledger
from rmqstore_spark.engine.batches.marker import read_marker
from rmqstore_spark.engine.batches.markers import Markers
from rmqstore_spark.engine.config.properties_file import parse_properties
from rmqstore_spark.engine.recovery.clean_close import StoreState
from rmqstore_spark.engine.tables.queue_ends import told_ends
from rmqstore_spark.errors import (
    BlockError,
    CorruptStoreError,
    DataLossError,
    FrameError,
    OptionError,
    RefusedError,
    RemotingError,
    ReplicationError,
    ServiceError,
)
from rmqstore_spark.ha.frames import FrameDecoder
from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.checkpoint import Checkpoint
from rmqstore_spark.layout.compression import decompress
from rmqstore_spark.layout.dledger import (
    decode_entry_headers,
    decode_index_unit,
    decode_index_units,
    parse_committed_index,
)
from rmqstore_spark.layout.fastjson import dump_fastjson, parse_fastjson
from rmqstore_spark.layout.fields import LONGEST_HEAD_SIZE
from rmqstore_spark.layout.hosts import decode_msg_id
from rmqstore_spark.layout.index.build import IndexFile
from rmqstore_spark.layout.index.format import (
    SLOT_SIZE,
    IndexHeader,
    chain,
    decode_slots,
)
from rmqstore_spark.layout.index.geometry import infer_slots
from rmqstore_spark.layout.kernel.reference import plain
from rmqstore_spark.layout.queues.consumequeue import CONSUME_QUEUE
from rmqstore_spark.layout.record.columns import COLUMNS, build_batch
from rmqstore_spark.layout.record.dispatches import dispatches
from rmqstore_spark.layout.record.format import Records, check_crcs, decode_records, walk_records
from rmqstore_spark.layout.record.properties import find_properties, split_keys
from rmqstore_spark.layout.spans import U1, Spans
from rmqstore_spark.reader.before import body_end, fingerprint
from rmqstore_spark.reader.options import ReadOptions
from rmqstore_spark.reader.rows.pulled import PulledRows
from rmqstore_spark.remoting.addresses import parse_address
from rmqstore_spark.server.budget import OverBudgetError, Room
from rmqstore_spark.server.connections.receiver import EndedError, Receiver
from rmqstore_spark.wire import messages, reading
from rmqstore_spark.wire.codec import MessageError, decode, encode
from rmqstore_spark.wire.endpoint import parse_endpoints
from rmqstore_spark.wire.protocol import Acknowledgement, piece_lengths, pieces_head
from rmqstore_spark.wire.transport import PlainTransport
from tests.fuzz.remoting import frames, heartbeat, registration, route, sends
from tests.support.messages.blocks import block_outcome
from tests.support.messages.spans import decode_properties

__all__ = ["DECODERS", "check"]

MOST: Final = 1 << 16
"""Bytes of a JSON message, and of an unpacked body."""

_KINDS: Final[list[Any]] = [
    *(
        kind
        for kind in {**vars(reading), **vars(messages)}.values()
        if is_dataclass(kind) and kind is not messages.Done
    ),
    *(CommitRequest, StageInfo, WriterId),
]


def _array(data: bytes) -> U1:
    return np.frombuffer(data, np.uint8)


def stamped(data: bytes) -> Any:
    """Bytes of a master's log."""
    found = check_stamped(_array(data), 0, 1 << 16)
    return found.size, [(part.offset, _rows(part.records)) for part in found.parts]


def replicated(data: bytes) -> Any:
    """What a master sends."""
    pieces = FrameDecoder().feed(memoryview(data))
    return [(piece.offset, bytes(piece.data)) for piece in pieces]


def _walked(data: bytes, lead: int) -> Any:
    buffer = _array(data)
    walk = walk_records(buffer, 0, len(buffer), 0, lead)
    rooms = np.minimum(len(buffer) - walk.positions, MOST).astype(np.int32)
    found = decode_records(buffer, walk.positions, rooms)
    return walk.stop, walk.at, walk.positions, _rows(found)


def _rows(found: Records) -> Any:
    """The fields of records, and of the sound ones all columns and what else is read in them."""
    checked = check_crcs(found, bodies=True)
    sound = found.take(np.flatnonzero(found.status == plain.OK))
    text = build_batch(sound, ["body"], broker="b", body_as_text=True)
    columns = build_batch(sound, list(COLUMNS), broker="b")
    return found.longs, found.ints, checked.status, columns, text, dispatches(sound)


def records(data: bytes) -> Any:
    """A stretch of a CommitLog, followed from record to record; and a record at any byte."""
    buffer = _array(data)
    positions = np.arange(0, len(buffer), max(1, len(buffer) // 16), dtype=np.int64)
    rooms = (len(buffer) - positions).astype(np.int32)
    return _walked(data, 0), _rows(decode_records(buffer, positions, rooms))


def dledger(data: bytes) -> Any:
    """A DLedger log, and its index."""
    offsets = np.array([0, 1, 48, len(data) // 2, len(data) - 1], np.int64)
    units = decode_index_units(data).tobytes()
    return _walked(data, 48), decode_entry_headers(data, offsets), units


def dledger_unit(data: bytes) -> Any:
    """One unit of DLedger's index."""
    return vars(decode_index_unit(data, 0))


def dledger_checkpoint(data: bytes) -> Any:
    """The text of DLedger's checkpoint."""
    return parse_committed_index(data.decode("utf-8", "replace"))


def queue(data: bytes) -> Any:
    """A ConsumeQueue."""
    entries = CONSUME_QUEUE.decode(data)
    columns, live = CONSUME_QUEUE.split(data[: len(data) // 20 * 20])
    masks = CONSUME_QUEUE.is_written(entries), CONSUME_QUEUE.is_message(entries)
    return entries.tobytes(), vars(columns), live, masks


def extension(data: bytes) -> Any:
    """A queue's extension units."""
    at = np.arange(max(0, len(data) - CONSUME_QUEUE.unit_head_size + 1), dtype=np.int64)
    heads, whole = CONSUME_QUEUE.unit_heads(_array(data), at)
    return heads.tobytes(), whole


def index(data: bytes) -> Any:
    """An index file: its geometry, its chains, and keys put into it."""
    slots = infer_slots(len(data), lambda at, size: data[at : at + size])
    file = IndexFile.decode(data, slots if slots is not None else 3)
    header, entries = file.header, file.entries
    found = []
    for slot, newest in enumerate(decode_slots(data[40:], len(file.slots)).tolist()[:20]):
        try:
            offsets = chain(
                slot, len(file.slots), newest, header.next_entry,
                lambda first, count: entries[first : first + count],
            )  # fmt: skip
            found.append(offsets.tolist())
        except CorruptStoreError as error:
            found.append(str(error))
    return vars(header), slots, found


def index_header(data: bytes) -> Any:
    """An index file's header."""
    return IndexHeader.decode(data).encode()


def index_insert(data: bytes) -> Any:
    """Keys put into an index whose slots hold anything."""
    raw = data[: len(data) // SLOT_SIZE * SLOT_SIZE]
    slots = np.frombuffer(raw, ">i4").copy()
    file = IndexFile(IndexHeader(), slots, IndexFile.create(1, 12).entries)
    keys = np.arange(20, dtype=np.int32)
    put = file.insert(keys, keys.astype(np.int64), keys.astype(np.int64)) if len(slots) else 0
    return put, file.encode()


def checkpoint(data: bytes) -> Any:
    """The checkpoint."""
    return vars(Checkpoint.decode(data))


def marked(data: bytes) -> Any:
    """The record that a queue's entry states, as a stream's position takes note of it."""
    end = body_end(data[:LONGEST_HEAD_SIZE], len(data))
    return end, fingerprint(data, b"" if end is None else data[end:], len(data))


def properties(data: bytes) -> Any:
    """Strings of properties, three of them, with the keys in them."""
    step = min(len(data) // 3, 32_767)
    starts = np.array([0, step, 2 * step], np.int64)
    spans = Spans(_array(data), starts, np.full(3, step, np.int32))
    found = find_properties(spans, ("TAGS", "KEYS", "UNIQ_KEY"))
    texts = [(name, span.starts, span.lengths) for name, span in found.items()]
    return decode_properties(spans), texts, split_keys(found["KEYS"]), split_keys(spans)


def block(data: bytes) -> Any:
    """A client's block, as it is checked, stamped and dispatched; and records read back."""
    return [block_outcome(kernel.active, _array(data), v6=v6, strict=v6) for v6 in (False, True)]


def body(data: bytes) -> Any:
    """A compressed body, by the type that its first byte says."""
    if not data:
        return None
    return decompress(data[1:], 1 | (data[0] & 7) << 8, MOST)


def fastjson(data: bytes) -> Any:
    """JSON as RocketMQ writes it; what was understood must come back as it is."""
    value = parse_fastjson(data.decode("utf-8", "surrogateescape"))
    try:
        text = dump_fastjson(value)
    except ValueError:  # numbers that JSON has none of
        return repr(value)
    assert repr(parse_fastjson(text)) == repr(value)
    return text


def msg_id(data: bytes) -> Any:
    """A message id."""
    return vars(decode_msg_id(data.decode("utf-8", "replace")))


def endpoint(data: bytes) -> Any:
    """Endpoints of store processes; what is taken reads the same again."""
    found = parse_endpoints(data.decode("utf-8", "replace"))
    assert parse_endpoints(",".join(map(str, found))) == found
    return [str(one) for one in found]


def settings(data: bytes) -> Any:
    """A file of settings."""
    try:
        return parse_properties(data.decode("utf-8", "replace"))
    except ValueError as error:
        return str(error)


def accounts(data: bytes) -> Any:
    """A file with the accounts of a broker."""
    try:
        return sorted(parse_accounts([("plain_acl.yml", data)]).by_key)
    except OptionError as error:
        return str(error)


def message(data: bytes) -> Any:
    """A message of the protocol, of the kind that its first byte says."""
    if not data:
        return None
    kind = _KINDS[data[0] % len(_KINDS)]
    found = decode(kind, data[1:], most=MOST)
    assert decode(kind, encode(found), most=16 * MOST) == found
    return repr(found)


def acknowledgement(data: bytes) -> Any:
    """An acknowledgement."""
    return repr(vars(Acknowledgement.from_bytes(data)))


def received(data: bytes) -> Any:
    """Requests as a store process receives them."""
    ours, client = socket.socketpair()
    room = Room(1 << 18, 1 << 17)
    found: list[Any] = []
    with ours, client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        receiver = Receiver(PlainTransport(ours), lambda _, size: room.of(size), lambda *_: None)
        try:
            while (one := receiver.read(5, 0)) is not None:
                found.append((one.head, one.data.tobytes()))
                one.release()
        except (EndedError, OverBudgetError) as error:
            found.append(type(error).__name__)
        finally:
            receiver.close()
    assert room.used == 0
    return repr(found)


def answered(data: bytes) -> Any:
    """Answers as a client of a store process receives them: one, and the pieces of another."""
    ours, process = socket.socketpair()
    with ours, process:
        process.sendall(data)
        process.shutdown(socket.SHUT_WR)
        link = Link(PlainTransport(ours), "")
        try:
            until = time.monotonic() + 5
            size = link.head(until)
            body = bytes(link.body(min(size, MOST), until))
            lengths, last = link.pieces(until)
            return size, body, lengths, last, [bytes(link.body(n, until)) for n in lengths]
        except (RefusedError, ConnectionError) as error:
            return str(error)


def pieces(data: bytes) -> Any:
    """The lengths of the pieces of an answer; they come out as they went in."""
    whole = data[: len(data) // 4 * 4]
    lengths, last = piece_lengths(whole)
    assert pieces_head(lengths, last)[4:] == whole
    return lengths, last


def ledger(data: bytes) -> Any:
    """What a store writes down of its commits and of its queues, and a commit's marker."""
    with _file(data) as path:
        taken = Ledger(str(path), Markers(str(path.parent)))
        taken._load(1 << 60)
        state = StoreState.load(str(path.parent.parent))
    return len(taken), repr(read_marker(data, 5)), repr(state)


def peers(data: bytes) -> Any:
    """What the other members of a group ask, and whether their entries can be stored."""
    kinds = (DLedgerRequest.VOTE, DLedgerRequest.HEART_BEAT, DLedgerRequest.PUSH)
    code = kinds[data[0] % 3 if data else 2]
    asked, request = request_of(code, data[1:])
    has_records = isinstance(request, Push) and are_records(request.entries)
    return write_wire(asked), repr(request), has_records


def peer_answers(data: bytes) -> Any:
    """What another member of a group answers to a vote, a heartbeat or a push."""
    push = Push(PushType.COMMIT, 3, "n0", -1, -1, 4)
    asked = (Vote(3, "n0", 40, 2), LeaderHeartbeat(3, "n0"), push)
    return repr(answer_of(asked[data[0] % 3 if data else 2], data[1:]))


def leaders(data: bytes) -> Any:
    """What the leader of a group says of itself, and whether its broker can be asked."""
    return parse_address(read_wire(WireMetadataAnswer, data).broker_addr)


def asked_queue_ends(data: bytes) -> Any:
    """Behind which queue another member of a group asks for more; a store gives it a page."""
    asked = read_wire(WireAskQueueEnds, data)
    assert len(asked.topic) <= 300
    return asked.topic, asked.queue_id


def queue_ends(data: bytes) -> Any:
    """Where another member of a group says that queues end."""
    told = read_wire(WireQueueEnds, data)
    try:
        return told.known, told_ends(told.ends), told.log_end, told.is_last
    except ValueError as error:
        return str(error)


def pulled(data: bytes) -> Any:
    """Records that a broker sent for two pulls; whether it filtered is in the first byte."""
    kind, cut = data[:1], len(data) // 2
    options = ReadOptions(mode="DROPMALFORMED" if kind == b"\x01" else "FAILFAST")
    rows = PulledRows("b", "the broker", "T", 0, options, is_filtered=kind != b"\x02")
    return list(rows.decode([PulledPiece(0, 5, data[1:cut]), PulledPiece(5, 10, data[cut:])]))


@contextmanager
def _file(data: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        path = Path(name, "rmqstore", "state.json")
        path.parent.mkdir()
        path.write_bytes(data)
        yield path


DECODERS: Final[tuple[Callable[[bytes], Any], ...]] = (
    records, dledger, dledger_unit, dledger_checkpoint, queue, extension, index,
    index_header, index_insert, checkpoint, properties, block, body, fastjson, msg_id, endpoint,
    settings, message, acknowledgement, ledger, received, answered, pieces, stamped, replicated,
    frames, registration, accounts, route, pulled, sends, heartbeat, marked,
    peers,
    leaders,
    peer_answers,
    queue_ends,
    asked_queue_ends,
)  # fmt: skip
"""All of them; the place of one is the first byte of a fuzzer's input."""

_DECLARED: Final = (
    CorruptStoreError, BlockError, OptionError, MessageError, ReplicationError, FrameError,
    ServiceError, DataLossError, RemotingError, Refusal,
)  # fmt: skip


def check(decoder: Callable[[bytes], Any], data: bytes) -> Any:
    """Give bytes to a decoder with each kernel; both outcomes must be one, which is returned.

    Raises:
        AssertionError: the kernels differ.
        Exception: any that the decoder does not declare.
    """
    compiled, other = (_outcome(decoder, data, module) for module in (kernel._choose(), plain))
    assert compiled == other, (decoder.__name__, data, compiled, other)
    return compiled


def _outcome(decoder: Callable[[bytes], Any], data: bytes, module: ModuleType) -> Any:
    before, kernel.active = kernel.active, module
    try:
        return _comparable(decoder(data))
    except _DECLARED as error:
        return type(error).__name__, str(error)
    finally:
        kernel.active = before


def _comparable(value: Any) -> Any:
    """The same value in what can be compared."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, pa.Array | pa.RecordBatch):
        value.validate(full=True)
        return value.to_pylist()
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable(item) for item in value]
    return value
