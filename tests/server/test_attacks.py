"""What a hostile client sends: it may fail its own call, and nothing else (promise 8)."""

from __future__ import annotations

import http.client
import json
import os
import struct
import subprocess
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pyarrow as pa
import pytest
import zstandard

from rmqstore_spark.client import StoreClient
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.errors import StoreAccessError
from rmqstore_spark.reader import Store
from rmqstore_spark.wire.protocol import BUSY, Code
from tests.support.processes.plainclient import PlainClient, request
from tests.support.processes.serving import Served, StoreProcess, block_of, eventually, served


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "store", max_block_bytes=4 << 20) as found:
        yield found
        # Whatever was sent: the process lives, and others are served.
        with StoreClient(found.endpoint, retries=0) as client, client.put_stream() as stream:
            assert stream.put(block_of([b"still alive"])).status == "PUT_OK"


@pytest.fixture
def raw(here: Served) -> Iterator[PlainClient]:
    with PlainClient(here.endpoint) as client:
        yield client


@pytest.mark.threat("What the process receives")
@pytest.mark.parametrize("data", [b"x", bytes(4), bytes(91), bytes(5000), b"\xff" * 200])
def test_blocks_that_are_none(raw: PlainClient, here: Served, data: bytes) -> None:
    raw.begin(op="put")
    good = block_of([b"a"]).tobytes()
    told = [raw.put(block, number) for number, block in enumerate((good, data, good))]
    assert told == ["PUT_OK", "MESSAGE_ILLEGAL", "PUT_OK"]
    raw.close()
    with PlainClient(here.endpoint) as stager:
        stager.begin(op="stage", stageId="0" * 32)
        assert stager.put(data) == "MESSAGE_ILLEGAL"
        assert not list(stager.answers())


def test_a_block_larger_than_is_allowed(raw: PlainClient) -> None:
    raw.begin(op="put")
    raw.send(request(Code.BLOCK, bytes((4 << 20) + 1)))
    assert "maxBlockBytes" in raw.answer().remark


def test_a_refused_block_is_refused_behind_others_too(raw: PlainClient) -> None:
    blocks = [block_of([b"a"]).tobytes()] * 3
    raw.send(
        request(Code.BLOCKS, b'{"op":"put"}'),
        *(request(Code.BLOCK, block, number) for number, block in enumerate(blocks)),
        request(Code.BLOCK, bytes((4 << 20) + 1), 3),
    )
    assert [raw.answer().acknowledged for _ in blocks] == ["PUT_OK"] * 3
    assert "maxBlockBytes" in raw.answer().remark


@pytest.mark.parametrize("number", [-1, -(1 << 31), (1 << 31) - 1])
def test_numbers_of_blocks_are_repeated_whatever_they_are(raw: PlainClient, number: int) -> None:
    raw.begin(op="put")
    answer = raw.ask(Code.BLOCK, block_of([b"a"]).tobytes(), number)
    assert (answer.number, answer.acknowledged) == (number, "PUT_OK")


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
def test_commands_that_are_none(raw: PlainClient, here: Served, command: bytes) -> None:
    raw.send(request(Code.BLOCKS, command), request(Code.BLOCK, b"1234"))
    assert raw.answer().status == "MESSAGE_ILLEGAL"
    assert not list(raw.answers())
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
def test_requests_that_are_none(raw: PlainClient, body: bytes) -> None:
    assert raw.ask(Code.OPEN, body).status == "MESSAGE_ILLEGAL"


@pytest.mark.parametrize("store", ["", "other", "../store", "x" * 10_000, "o\0pen"])
def test_stores_that_there_are_not(raw: PlainClient, store: str) -> None:
    raw.send(request(Code.STATS, b"{}", extFields={"store": store}))
    assert raw.answer().status == "NO_PERMISSION"


# ---- reading ------------------------------------------------------------------------------------


def read(client: PlainClient, **asked: Any) -> bytes | str:
    """The bytes of ranges, or the status of the refusal."""
    asked = {"offsets": [0], "lengths": [64], **asked}
    if "paths" not in asked:
        offsets = asked["offsets"]
        asked["paths"] = [asked.pop("path")]
        asked.setdefault("counts", [len(offsets) if isinstance(offsets, list) else 1])
    asked.pop("path", None)
    client.send(request(Code.READ, json.dumps(asked).encode()))
    found, ended = b"", 0
    while not ended or ended < len(asked["offsets"]):
        answer = client.answer()
        if answer.status:
            return answer.status
        count = int.from_bytes(answer.body[:4], "little")
        ended += sum(word & 1 for word in np.frombuffer(answer.body, "<u4", count, 4).tolist())
        found += answer.body[4 + 4 * count :]
    return found


REFUSALS = {"NOT_FOUND", "NO_PERMISSION", "MESSAGE_ILLEGAL"}


@pytest.fixture
def filled(here: Served) -> Served:
    with StoreClient(here.endpoint) as client, client.put_stream() as stream:
        stream.send(block_of([b"hello"]))
    here.store.flush()
    return here


def test_what_is_given_out(raw: PlainClient, filled: Served) -> None:
    log = read(raw, path="commitlog/00000000000000000000")
    assert isinstance(log, bytes)
    assert log[4:8] == struct.pack(">i", -626843481)
    topics = read(raw, path="config/topics.json", lengths=[4096])
    assert isinstance(topics, bytes)
    assert b"topicConfigTable" in topics


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
def test_what_is_not_given_out(raw: PlainClient, filled: Served, path: str, tmp_path: Path) -> None:
    store = Path(filled.store.path)
    (tmp_path / "secret").write_text("a secret")
    (store / "link").symlink_to(tmp_path / "secret")
    (store / "config" / "link.json").symlink_to(tmp_path / "secret")
    (store / "config" / "away").symlink_to(tmp_path)
    assert read(raw, path=path) in REFUSALS
    for depth in (0, 3):
        with PlainClient(filled.endpoint) as client:
            answer = client.ask(Code.WALK, {"path": path, "depth": depth})
        assert b"a secret" not in answer.body
        if answer.status:
            assert answer.status in REFUSALS
            continue
        names = {entry["path"] for entry in answer.json()["entries"]}
        assert not [name for name in names if "link" in name or "away" in name or "guard" in name]
        assert names.isdisjoint({"abort", "lock"})
        assert not [name for name in names if name.startswith("rmqstore/")]


@pytest.mark.threat("What the process gives out")
def test_links_where_messages_lie_are_told_and_not_followed(
    raw: PlainClient, filled: Served, tmp_path: Path
) -> None:
    queues = Path(filled.store.path, "consumequeue")
    (queues / "orders").rename(tmp_path / "elsewhere")
    (queues / "orders").symlink_to(tmp_path / "elsewhere")
    for path in ("consumequeue", "consumequeue/orders"):
        for depth in (0, 2):
            assert raw.ask(Code.WALK, {"path": path, "depth": depth}).status
    with pytest.raises(StoreAccessError, match="is a link"), Store.open(filled.endpoint) as store:
        store.queues()
    (queues / "orders").unlink()
    (tmp_path / "elsewhere").rename(queues / "orders")


@pytest.mark.threat("What the process gives out")
@pytest.mark.parametrize(
    "asked",
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
    ids=lambda asked: str(asked)[:40],
)
def test_ranges_that_are_none(raw: PlainClient, filled: Served, asked: dict[str, Any]) -> None:
    assert read(raw, path="commitlog/00000000000000000000", **asked) in REFUSALS


def test_a_file_is_read_to_its_end_and_no_further(raw: PlainClient, filled: Served) -> None:
    path = Path(filled.store.path, "config", "topics.json")
    size = path.stat().st_size
    ranges = {"offsets": [0, size - 3, size, size + 9], "lengths": [5, 64, 64, 64]}
    whole = path.read_bytes()
    assert read(raw, path="config/topics.json", **ranges) == whole[:5] + whole[-3:]


def test_the_log_reads_as_zeros_past_what_is_published(raw: PlainClient, filled: Served) -> None:
    end = filled.store.published_end
    segment = Path(filled.store.path, "commitlog", "0" * 20)
    descriptor = os.open(segment, os.O_WRONLY)
    os.pwrite(descriptor, b"\1" * 100, end)  # a record that is being written
    os.close(descriptor)
    found = read(raw, path="commitlog/" + "0" * 20, offsets=[end - 4], lengths=[50])
    assert found[4:] == bytes(46)


@pytest.mark.threat("What the process gives out")
def test_a_pipe_in_the_store_holds_nobody_up(raw: PlainClient, filled: Served) -> None:
    os.mkfifo(Path(filled.store.path, "config", "pipe"))
    assert read(raw, path="config/pipe") == "NOT_FOUND"


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
    pages = ("--set=metricsPromExporterPort=0", "--set=statusPageEnable=true")
    with StoreProcess(path, tmp_path, *pages, begin=subprocess.Popen) as process:
        process.ready()
        yield process


def ask(endpoint: str, key: str, max_num: int) -> PlainClient:
    """Send a query as a client with no code of ours; its answer is to be read."""
    asked = {"topic": "T", "key": key, "maxNum": max_num, "beginMs": 0, "endMs": (1 << 63) - 1}
    client = PlainClient(endpoint, seconds=60)
    client.send(request(Code.QUERY, json.dumps(asked).encode()))
    return client


def outcome(endpoint: str, key: str, max_num: int) -> str:
    """What comes of a query: `found`, `too much`, or another refusal."""
    with ask(endpoint, key, max_num) as client:
        answer = client.answer()
    if answer.status:
        return "too much" if "Request fewer" in answer.remark else answer.status
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
    for client in unread:
        client.close()
    eventually(lambda: memory(bombs, "VmRSS") < 400 << 20, 10)


@pytest.mark.threat("Status pages")
@pytest.mark.threat("Compressed bodies are bounded")
def test_pages_of_much_that_is_compressed(bombs: StoreProcess) -> None:
    address = bombs.ready()["metrics"]

    def page(path: str) -> int:
        connection = http.client.HTTPConnection(address, timeout=60)
        with closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            assert len(answer.read()) < 1 << 20
            return answer.status

    paths = [f"/status/message?topic=T&queue=0&offset={number}" for number in range(40)]
    paths += ["/status/messages?topic=T", "/status/messages?topic=T&key=zstd"] * 10
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(page, paths))
    assert set(found) <= {200, 503}
    assert memory(bombs, "VmHWM") < 600 << 20
    eventually(lambda: memory(bombs, "VmRSS") < 400 << 20, 10)
    assert page(paths[0]) == 200


def memory(process: StoreProcess, what: str) -> int:
    """Bytes that a process has (VmRSS), or has had at most (VmHWM)."""
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    return int(status.partition(f"{what}:")[2].split()[0]) << 10
