"""What a hostile client sends: it may fail its own call, and nothing else (promise 8)."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pyarrow as pa
import pytest
import zstandard
from pyarrow import flight

from rmqstore_spark.client import StoreClient
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import StoreAccessError
from rmqstore_spark.reader import Store
from rmqstore_spark.wire.failures import BUSY
from rmqstore_spark.wire.protocol import BLOCK_SCHEMA, number_bytes
from tests.support.processes.serving import Served, StoreProcess, block_of, eventually, served

PUT = b'{"op":"put"}'


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "store", max_block_bytes=4 << 20) as found:
        yield found
        # Whatever was sent: the process lives, and others are served.
        with StoreClient(found.endpoint, retries=0) as client, client.put_stream() as stream:
            assert stream.put(block_of([b"still alive"])).status == "PUT_OK"


@pytest.fixture
def raw(here: Served) -> Iterator[Any]:
    with flight.FlightClient(here.endpoint) as client:
        yield client


def send(
    client: Any,
    batch: pa.RecordBatch,
    metadata: bytes = number_bytes(0),
    command: bytes = PUT,
    **options: Any,
) -> str:
    """Send one batch as a block; returns the error that comes back."""
    descriptor = flight.FlightDescriptor.for_command(command)
    writer, reader = client.do_exchange(descriptor, flight.FlightCallOptions(timeout=20, **options))

    def send_and_read() -> None:
        writer.begin(batch.schema)
        writer.write_with_metadata(batch, metadata)
        writer.done_writing()
        answer = reader.read_chunk().app_metadata.to_pybytes()
        pytest.fail(f"it was answered: {answer!r}")

    with pytest.raises((flight.FlightError, pa.ArrowException)) as failure:
        send_and_read()
    with pytest.raises((flight.FlightError, pa.ArrowException)):
        writer.close()
    return str(failure.value)


def binary(values: int, offsets: list[int], data: bytes) -> pa.RecordBatch:
    bounds = np.zeros(len(offsets), np.int32)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    column = pa.Array.from_buffers(pa.binary(), values, buffers)
    batch = pa.RecordBatch.from_arrays([column], schema=BLOCK_SCHEMA)
    bounds[:] = offsets  # only now: what is not in order is not made
    return batch


@pytest.mark.threat("What the process receives")
@pytest.mark.parametrize("offsets", [[0, 1 << 30], [-8, 8], [8, 4], [0, -1]])
def test_offsets_that_lead_out_of_the_data(raw: Any, offsets: list[int]) -> None:
    assert "not a block" in send(raw, binary(1, offsets, b"12345678"))


def test_what_is_no_arrow_message_is_refused_as_no_block(raw: Any) -> None:
    """Arrow itself does not read a schema of so many levels."""
    kind: Any = pa.binary()
    for _ in range(130):
        kind = pa.list_(kind)
    writer, reader = raw.do_exchange(flight.FlightDescriptor.for_command(PUT))
    writer.begin(pa.schema([pa.field("records", kind, nullable=False)]))
    with pytest.raises(flight.FlightError, match="not a block"):
        reader.read_chunk()
    with pytest.raises((flight.FlightError, pa.ArrowException)):
        writer.close()


def test_more_rows_than_one(raw: Any) -> None:
    assert "2 rows" in send(raw, binary(2, [0, 4, 8], b"12345678"))
    assert "0 rows" in send(raw, binary(0, [0], b""))


def test_a_null(raw: Any) -> None:
    column = pa.array([None], pa.binary())
    assert "not a block" in send(raw, pa.RecordBatch.from_arrays([column], schema=BLOCK_SCHEMA))


@pytest.mark.threat("What the process receives")
@pytest.mark.parametrize(
    "column",
    [
        pa.array([1], pa.int64()),
        pa.array([b"x"], pa.large_binary()),
        pa.array(["x"], pa.string()),
        pa.array([b"x"], pa.binary_view()),
        pa.array([[b"x"]], pa.list_(pa.binary())),
        pa.array([b"x"], pa.binary()).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_another_schema(raw: Any, column: pa.Array) -> None:
    field = pa.field("records", column.type, nullable=False)
    batch = pa.RecordBatch.from_arrays([column], schema=pa.schema([field]))
    assert "schema" in send(raw, batch)


def test_another_name_another_nullability_more_columns(raw: Any) -> None:
    value = pa.array([b"x"], pa.binary())
    for fields in (
        [pa.field("record", pa.binary(), nullable=False)],
        [pa.field("records", pa.binary())],
        [pa.field("records", pa.binary(), nullable=False), pa.field("more", pa.binary())],
    ):
        batch = pa.RecordBatch.from_arrays([value] * len(fields), schema=pa.schema(fields))
        assert "schema" in send(raw, batch)


def test_a_block_larger_than_is_allowed(raw: Any) -> None:
    size = (4 << 20) + 8192
    assert "maxBlockBytes" in send(raw, binary(1, [0, size], bytes(size)))


@pytest.mark.threat("What the process receives")
def test_compressed_data_that_becomes_large(raw: Any) -> None:
    size = 64 << 20
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    assert "maxBlockBytes" in send(raw, binary(1, [0, size], bytes(size)), write_options=options)


@pytest.mark.parametrize("metadata", [b"", b"1234567", b"123456789", b"finish "])
def test_metadata_that_is_no_number(raw: Any, metadata: bytes) -> None:
    assert "metadata" in send(raw, binary(1, [0, 4], b"1234"), metadata)


@pytest.mark.threat("What the process receives")
@pytest.mark.parametrize(
    "command",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"op":"drop"}',
        b'{"op":"put","op":"put"}',
        b'{"op":"put","more":1}',
        b'{"op":"put","results":1}',
        b'{"op":"stage"}',
        b'{"op":"put","stageId":"00"}',
        b'{"op":"stage","stageId":"../../../../../etc/cron.d/x"}',
        b'{"op":"stage","stageId":"..%2f"}',
        b"\xff\xfe",
        b"[" * 4000,
        b'{"op":' + b"9" * 4000 + b"}",
        b'{"op":"' + b"a" * 100_000 + b'"}',
    ],
    ids=lambda command: str(command[:24]),
)
def test_commands_that_are_none(raw: Any, here: Served, command: bytes) -> None:
    send(raw, binary(1, [0, 4], b"1234"), command=command)
    staged = Path(here.store.path, "rmqstore", "staging")
    assert not staged.exists() or not list(staged.iterdir())


@pytest.mark.threat("What the process receives")
@pytest.mark.parametrize(
    "body",
    [
        b"[" * 60_000,
        b'{"topics":' + b"[" * 20_000,
        b'{"topics":["' + b"a" * 200 + b'"]}',
        b'{"topics":"orders"}',
        b'{"topics":[1]}',
        b'{"topics":[null]}',
        b'{"topics":NaN}',
        b'{"__class__":"os.system"}',
        b"\x80\x04\x95",  # a pickle
        b"{" * 300_000,
    ],
    ids=lambda body: str(body[:24]),
)
def test_requests_that_are_none(raw: Any, body: bytes) -> None:
    with pytest.raises(flight.FlightError, match="MESSAGE_ILLEGAL"):
        list(raw.do_action(flight.Action("open", body)))


@pytest.mark.parametrize("name", ["", "Open", "exec", "../stop", "x" * 100_000, "o\0pen"])
def test_actions_that_there_are_not(raw: Any, name: str) -> None:
    with pytest.raises((flight.FlightError, pa.ArrowException)):
        list(raw.do_action(flight.Action(name, b"{}")))


def test_other_calls_of_flight_are_not_there(raw: Any) -> None:
    descriptor = flight.FlightDescriptor.for_path("commitlog")
    with pytest.raises((flight.FlightError, NotImplementedError, pa.ArrowException)):
        raw.get_flight_info(descriptor)
    with pytest.raises((flight.FlightError, NotImplementedError, pa.ArrowException)):
        raw.do_put(descriptor, BLOCK_SCHEMA)[0].close()
    with pytest.raises((flight.FlightError, NotImplementedError, pa.ArrowException)):
        list(raw.list_flights())


# ---- reading ------------------------------------------------------------------------------------


def read(client: Any, **request: Any) -> bytes:
    asked = {"offsets": [0], "lengths": [64], **request}
    path, offsets = asked.pop("path"), asked["offsets"]
    count = len(offsets) if isinstance(offsets, list) else 1
    asked = {"paths": [path], "counts": [count], **asked}
    ticket = flight.Ticket(json.dumps(asked).encode())
    table = client.do_get(ticket, flight.FlightCallOptions(timeout=20)).read_all()
    return b"".join(table.column("data").to_pylist())


@pytest.fixture
def filled(here: Served) -> Served:
    with StoreClient(here.endpoint) as client, client.put_stream() as stream:
        stream.send(block_of([b"hello"]))
    here.store.flush()
    return here


def test_what_is_given_out(raw: Any, filled: Served) -> None:
    assert read(raw, path="commitlog/00000000000000000000")[4:8] == struct.pack(">i", -626843481)
    assert b"topicConfigTable" in read(raw, path="config/topics.json", lengths=[4096])


@pytest.mark.threat("What the process gives out")
@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../secret",
        "commitlog/../../secret",
        "commitlog/..",
        "config/../checkpoint",
        "./checkpoint",
        "commitlog//00000000000000000000",
        "commitlog/",
        "",
        "commitlog",
        "abort",
        "lock",
        "rmqstore/store-id",
        "rmqstore",
        "commitlog/rmqstore-spark.guard",
        "config\\topics.json",
        "checkpoint\0",
        "config/topics.json/x",
        "a/" * 100,
        "\ud800",
        "link",
        "config/link.json",
        "config/away/secret",
        "commitlog/00000000000001048576x",
    ],
)
def test_what_is_not_given_out(raw: Any, filled: Served, path: str, tmp_path: Path) -> None:
    store = Path(filled.store.path)
    (tmp_path / "secret").write_text("a secret")
    (store / "link").symlink_to(tmp_path / "secret")
    (store / "config" / "link.json").symlink_to(tmp_path / "secret")
    (store / "config" / "away").symlink_to(tmp_path)
    with pytest.raises((flight.FlightError, pa.ArrowException)) as failure:
        read(raw, path=path)
    assert "a secret" not in str(failure.value)
    for action in ("list", "walk"):
        with_depth = {"path": path} if action == "list" else {"path": path, "depth": 3}
        try:
            (answer,) = raw.do_action(flight.Action(action, json.dumps(with_depth).encode()))
        except (flight.FlightError, pa.ArrowException):
            continue
        names = {entry["path"] for entry in json.loads(answer.body.to_pybytes())["entries"]}
        assert not [name for name in names if "link" in name or "away" in name or "guard" in name]
        assert names.isdisjoint({"abort", "lock", "rmqstore"})


@pytest.mark.threat("What the process gives out")
def test_links_where_messages_lie_are_told_and_not_followed(
    raw: Any, filled: Served, tmp_path: Path
) -> None:
    queues = Path(filled.store.path, "consumequeue")
    (queues / "orders").rename(tmp_path / "elsewhere")
    (queues / "orders").symlink_to(tmp_path / "elsewhere")
    for path in ("consumequeue", "consumequeue/orders"):
        for action, depth in (("list", {}), ("walk", {"depth": 2})):
            body = json.dumps({"path": path, **depth}).encode()
            with pytest.raises(flight.FlightError):
                list(raw.do_action(flight.Action(action, body)))
    with pytest.raises(StoreAccessError, match="is a link"), Store.open(filled.endpoint) as store:
        store.queues()
    (queues / "orders").unlink()
    (tmp_path / "elsewhere").rename(queues / "orders")


@pytest.mark.threat("What the process gives out")
@pytest.mark.parametrize(
    "request_",
    [
        {"offsets": [-1]},
        {"lengths": [-1]},
        {"lengths": [1 << 40]},
        {"offsets": [0] * 200, "lengths": [2 << 20] * 200},
        {"offsets": [0] * 70_000, "lengths": [1] * 70_000},
        {"offsets": [(1 << 63) - 1]},
        {"offsets": [1 << 64]},
        {"offsets": [0, 1]},
        {"offsets": 0},
        {"offsets": [0.5]},
        {"offsets": [True]},
        {"counts": [2]},
        {"counts": [-1, 2], "paths": ["config/topics.json"] * 2},
        {"counts": [1, 0]},
        {"counts": [], "paths": []},
        {
            "paths": ["config/topics.json"] * 4097,
            **{name: [1] * 4097 for name in ("counts", "offsets", "lengths")},
        },
    ],
    ids=lambda request: str(request)[:40],
)
def test_ranges_that_are_none(raw: Any, filled: Served, request_: dict[str, Any]) -> None:
    with pytest.raises(flight.FlightError):
        read(raw, path="commitlog/00000000000000000000", **request_)


def test_a_file_is_read_to_its_end_and_no_further(raw: Any, filled: Served) -> None:
    path = Path(filled.store.path, "config", "topics.json")
    size = path.stat().st_size
    ranges = {"offsets": [0, size - 3, size, size + 9], "lengths": [5, 64, 64, 64]}
    whole = path.read_bytes()
    assert read(raw, path="config/topics.json", **ranges) == whole[:5] + whole[-3:]


def test_the_log_reads_as_zeros_past_what_is_published(raw: Any, filled: Served) -> None:
    end = filled.store.published_end
    segment = Path(filled.store.path, "commitlog", "0" * 20)
    descriptor = os.open(segment, os.O_WRONLY)
    os.pwrite(descriptor, b"\1" * 100, end)  # a record that is being written
    os.close(descriptor)
    assert read(raw, path="commitlog/" + "0" * 20, offsets=[end - 4], lengths=[50])[4:] == bytes(46)


@pytest.mark.threat("What the process gives out")
def test_a_pipe_in_the_store_holds_nobody_up(raw: Any, filled: Served) -> None:
    os.mkfifo(Path(filled.store.path, "config", "pipe"))
    with pytest.raises(flight.FlightError, match="NOT_FOUND"):
        read(raw, path="config/pipe")


# ---- memory -------------------------------------------------------------------------------------

UNPACKED = 16 << 20
PACKED = {
    "zlib": (0x301, zlib.compress(bytes(UNPACKED))),
    "lz4": (0x101, lz4.frame.compress(bytes(UNPACKED))),
    "zstd": (0x201, zstandard.compress(bytes(UNPACKED))),
}


@pytest.fixture
def bombs(tmp_path: Path) -> Iterator[StoreProcess]:
    """Give a process whose store holds small bodies that unpack to 16 MiB each."""
    path, count = tmp_path / "bombs", 40
    with StoreWriter.open(path, StoreConfig(mapped_file_size_commit_log=1 << 20)) as store:
        for name, (flags, packed) in PACKED.items():
            rows = {
                "topic": pa.array(["T"] * count),
                "body": pa.array([packed] * count, pa.binary()),
                "properties": pa.array([f"KEYS\x01{name}".encode()] * count, pa.binary()),
                "sysFlag": pa.array([flags] * count, pa.int32()),
            }
            batch = pa.RecordBatch.from_pydict(rows)
            for row in range(0, count, 10):  # a block that unpacks to more is refused
                assert store.put_batch(batch.slice(row, 10)).ok
    with StoreProcess(path, tmp_path) as process:
        process.ready()
        yield process


def ask(endpoint: str, key: str, max_num: int) -> tuple[Any, Any]:
    """Send a query as a client with no code of ours; returns it, and its answers to be read."""
    request = {"topic": "T", "key": key, "maxNum": max_num, "beginMs": 0, "endMs": (1 << 63) - 1}
    client = flight.FlightClient(endpoint)
    return client, client.do_action(flight.Action("query", json.dumps(request).encode()))


def outcome(endpoint: str, key: str, max_num: int) -> str:
    """What comes of a query: `found`, `too much`, or the text of another error."""
    client, answers = ask(endpoint, key, max_num)
    with client:
        try:
            (answer,) = answers
        except flight.FlightError as error:
            return "too much" if "Request fewer" in str(error) else str(error)
        assert pa.ipc.open_stream(answer.body).read_all()["body"].nbytes >= UNPACKED
        return "found"


@pytest.mark.threat("Compressed bodies are bounded")
def test_a_query_for_much_that_is_compressed(bombs: StoreProcess) -> None:
    asked = [(name, number) for number in (1024, 1) for name in PACKED] * 2
    with ThreadPoolExecutor(6) as threads:
        told = [(threads.submit(outcome, bombs.endpoint, *query), query[1]) for query in asked]
        for outcome_of, number in told:
            wanted = "found" if number == 1 else "too much"
            assert outcome_of.result() == wanted or BUSY in outcome_of.result()
    assert memory(bombs, "VmHWM") < 600 << 20
    eventually(lambda: memory(bombs, "VmRSS") < 400 << 20, 10)
    assert outcome(bombs.endpoint, "zstd", 1) == "found"


@pytest.mark.threat("Compressed bodies are bounded")
def test_answers_that_nobody_reads_do_not_pile_up(bombs: StoreProcess) -> None:
    unread = [ask(bombs.endpoint, "zstd", 1) for _ in range(20)]
    eventually(lambda: outcome(bombs.endpoint, "zstd", 1) == "found")
    assert memory(bombs, "VmHWM") < 600 << 20
    unread.clear()  # which cancels the calls
    eventually(lambda: memory(bombs, "VmRSS") < 400 << 20, 10)


def memory(process: StoreProcess, what: str) -> int:
    """Bytes that a process has (VmRSS), or has had at most (VmHWM)."""
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    return int(status.partition(f"{what}:")[2].split()[0]) << 10
