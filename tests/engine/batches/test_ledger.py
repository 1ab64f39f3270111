"""What is known of commits: from markers in the log, and from a file where they have expired."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from rmqstore_spark.base.types import Content, WriterId
from rmqstore_spark.engine.batches import ledger as ledger_module
from rmqstore_spark.engine.batches import markers as markers_module
from rmqstore_spark.engine.batches.ledger import Ledger
from rmqstore_spark.engine.batches.marker import MARKER_TOPIC, Committed, marker_body
from rmqstore_spark.engine.batches.markers import Markers
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.reader import Store
from tests.support.messages.traffic import Traffic
from tests.support.stores.storebuilder import StoreBuilder

END = 1 << 62
TOPICS = {"orders": 7, "bills": 3}
TEN = Content(10, 500, "0f" * 16, TOPICS)
TIME = 1_700_000_000_123


def query(batch: int, name: str = "q") -> WriterId:
    return WriterId.of_stream(name, batch)


def knows(ledger: Ledger, writer: WriterId, content: Content = TEN) -> bool:
    """Whether a commit of such content does nothing, because it was done."""
    return ledger.find(writer, content, recalled=ledger.recall(writer)) is not None


def refusal(
    ledger: Ledger, writer: WriterId, content: Content = TEN, identity: str = ""
) -> RefusedError:
    """Why a commit is refused."""
    with pytest.raises(RefusedError) as raised:
        ledger.find(writer, content, identity, ledger.recall(writer))
    return raised.value


class Log:
    """A store whose log holds markers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.builder = StoreBuilder(path, segment_size=16 << 10)
        self.file = str(path / "ledger.json")

    def put(self, *bodies: bytes) -> list[int]:
        """Append messages to the markers' topic; returns their places."""
        batch = pa.RecordBatch.from_pydict(
            {
                "topic": pa.array([MARKER_TOPIC] * len(bodies)),
                "queueId": pa.array([0] * len(bodies), pa.int32()),
                "body": pa.array(bodies, pa.binary()),
                "properties": pa.array([b""] * len(bodies), pa.binary()),
            }
        )
        stored = self.builder.append(batch)
        self.builder.flush()
        return stored["physicalOffset"].to_pylist()

    def commit(self, *writers: WriterId, identity: str = "") -> list[int]:
        """Append markers."""
        stages = ("0" * 32,)
        bodies = (marker_body(w, TEN, 1000, 77, TIME, stages, identity) for w in writers)
        return self.put(*bodies)

    def commit_as_before(self, writer: WriterId) -> int:
        """Append a marker of version 1."""
        value = {
            "version": 1, "kind": writer.kind, "name": writer.name, "number": writer.number,
            "rows": 10, "bytes": 1000, "physicalOffset": 77, "stages": ["0" * 32],
        }  # fmt: skip
        (place,) = self.put(json.dumps(value).encode())
        return place

    def open(self, log_end: int = END) -> Ledger:
        """Open the ledger as a new process does."""
        return Ledger.open(self.file, Markers(str(self.path)), log_end)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "store")


def test_a_store_without_commits_knows_none(log: Log) -> None:
    ledger = log.open()
    assert not knows(ledger, query(0))
    assert len(ledger) == 0


def test_markers_in_the_log_tell_what_was_committed(log: Log) -> None:
    places = log.commit(query(0), query(1), WriterId.of_batch("app", 5))
    ledger = log.open()
    assert ledger.find(query(1), TEN) == Committed(1, TEN, 1000, 77, places[1], TIME)
    assert not knows(ledger, query(2))
    assert ledger.find(WriterId.of_batch("app", 5), TEN) == Committed(
        5, TEN, 1000, 77, places[2], TIME
    )


def test_a_number_marks_itself_and_no_other(log: Log) -> None:
    log.commit(query(3), query(7))
    ledger = log.open()
    assert knows(ledger, query(3))
    for number in (0, 2, 4, 6):
        error = refusal(ledger, query(number))
        assert error.status == "MESSAGE_ILLEGAL"
        assert f"batch {number} of query q cannot be committed: 7 has been" in str(error)
    for number in (8, 9, (1 << 63) - 1):
        assert not knows(ledger, query(number))


def test_earlier_batches_are_looked_up_in_the_log(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markers_module, "_AT_ONCE", 3)  # as of a log with more markers
    numbers = range(0, 60, 3)
    log.commit(*(query(n, name) for n in numbers for name in ("q", "other", "q2")))
    ledger = log.open()
    for n in numbers:
        assert knows(ledger, query(n))
        assert refusal(ledger, query(n), Content(11, 500)).status == "MESSAGE_ILLEGAL"
    assert "has no marker of 4" in str(refusal(ledger, query(4)))


@pytest.mark.parametrize("content", [Content(9, 500), Content(10, 499), Content(1, 0)])
@pytest.mark.parametrize("number", [3, 4])
def test_a_number_that_comes_with_other_content_is_refused(
    log: Log, content: Content, number: int
) -> None:
    places = dict(zip((3, 4), log.commit(query(3), query(4)), strict=True))
    error = refusal(log.open(), query(number), content)
    assert error.status == "MESSAGE_ILLEGAL"
    for words in (
        f"batch {number} of query q has been committed already with different content",
        "10 rows with 500 bytes of bodies",
        f"{content.rows} rows with {content.body_bytes} bytes of bodies",
        f"marker at {places[number]} in the log",
        "new checkpoint",
    ):
        assert words in str(error)


def test_what_was_written_before_there_were_bytes_of_bodies_is_known_by_its_rows(log: Log) -> None:
    log.commit_as_before(query(3))
    rows = [["batch", "app", 5, 10, 1000, 1, 2]]
    Path(log.file).write_text(json.dumps({"version": 1, "mark": 0, "writers": rows}))
    for _ in range(2):
        ledger = log.open()
        for writer in (query(3), WriterId.of_batch("app", 5)):
            assert knows(ledger, writer)
            assert knows(ledger, writer, Content(10, 7))
            assert "10 rows," in str(refusal(ledger, writer, Content(11, 7)))
        ledger.save()
        assert json.loads(Path(log.file).read_bytes())["version"] == 3


def test_what_was_written_before_there_were_digests_is_known_by_rows_and_bytes(log: Log) -> None:
    value = {
        "version": 2, "kind": "stream", "name": "q", "number": 3, "rows": 10, "bytes": 1000,
        "bodyBytes": 500, "physicalOffset": 77, "stages": ["0" * 32],
    }  # fmt: skip
    log.put(json.dumps(value).encode())
    rows = [["batch", "app", 5, 10, 1000, 500, 1, 2, "spark"]]
    Path(log.file).write_text(json.dumps({"version": 2, "mark": 0, "writers": rows}))
    for _ in range(2):
        ledger = log.open()
        for writer in (query(3), WriterId.of_batch("app", 5)):
            assert ledger.find(writer, TEN, "spark") is not None
            error = refusal(ledger, writer, Content(10, 7, "0f" * 16), "spark")
            assert "10 rows with 500 bytes of bodies, from" in str(error)
        ledger.save()
        assert json.loads(Path(log.file).read_bytes())["version"] == 3


@pytest.mark.parametrize("is_expired", [False, True])
def test_content_of_the_same_size_is_told_apart_by_its_digest(log: Log, is_expired: bool) -> None:
    log.commit(query(3))
    ledger = log.open()
    if is_expired:
        ledger.save()
        kept = Path(log.file).read_bytes()
        log = Log(log.path.with_name("expired"))
        Path(log.file).parent.mkdir(parents=True, exist_ok=True)
        Path(log.file).write_bytes(kept)
        ledger = log.open()
    assert knows(ledger, query(3))
    error = refusal(ledger, query(3), Content(10, 500, "1f" * 16, {"audit": 10}))
    for words in (
        f"500 bytes of bodies (orders: 7, bills: 3, digest {'0f' * 16})",
        "stored at 2023-11-14T22:13:20.123Z, from 77 to its marker at",
        f"The new commit has 10 rows with 500 bytes of bodies (audit: 10, digest {'1f' * 16})",
        "a copy of its checkpoint",
    ):
        assert words in str(error)


def test_an_error_names_the_topics_with_the_most_rows(log: Log) -> None:
    many = {f"t{n:02}": 100 - n for n in range(20)}
    content = Content(sum(many.values()), 500, "0f" * 16, many)
    log.put(marker_body(query(3), content, 1000, 77, TIME, ("0" * 32,)))
    error = str(refusal(log.open(), query(3), replace(content, digest="1f" * 16)))
    assert error.count("t00: 100, t01: 99") == 2
    assert error.count("t07: 93, other topics, digest") == 2
    assert "t08" not in error


def test_writers_of_other_names_and_kinds_are_others(log: Log) -> None:
    log.commit(query(7, "same"))
    ledger = log.open()
    assert not knows(ledger, query(1, "other"))
    assert not knows(ledger, WriterId.of_batch("same", 1))
    once = WriterId.of_one_write()
    ledger.add(once, Committed(0, TEN, 1, 1, 1), 1)
    assert knows(ledger, once)
    assert not knows(ledger, WriterId.of_one_write())


@pytest.mark.threat("What one client can do to another")
def test_a_writer_belongs_to_the_client_that_committed_first_as_it(log: Log) -> None:
    log.commit(query(0, "free"))
    log.commit(query(0), WriterId.of_batch("app", 5), identity="spark-a")
    log.commit(query(1))  # over the unix socket, where nobody is told apart
    log.open().save()
    for _ in range(2):
        ledger = log.open()
        for writer in (query(1), query(2), query(0), WriterId.of_batch("app", 6)):
            error = refusal(ledger, writer, identity="spark-b")
            assert error.status == "NO_PERMISSION"
            assert "belongs to the client 'spark-a'" in str(error)
            assert "this client is 'spark-b'" in str(error)
        for identity in ("spark-a", ""):
            assert ledger.find(query(2), TEN, identity) is None
            assert ledger.find(query(1), TEN, identity) is not None
        assert ledger.find(query(1, "free"), TEN, "spark-b") is None
        Path(log.file).unlink(missing_ok=True)


def test_the_file_knows_what_has_expired(log: Log) -> None:
    log.commit(query(3), query(0, "other"))
    log.open().save()
    traffic = Traffic(500)
    for batch in traffic.batches():
        log.builder.append(batch)
    log.commit(query(9, "later"))
    for name in ("00000000000000000000", "00000000000000016384"):
        (log.path / "commitlog" / name).unlink()
    with Store.open(log.path) as store:
        assert store.queue(MARKER_TOPIC, 0).min_offset == 2
    ledger = log.open()
    assert [knows(ledger, query(3)), knows(ledger, query(4))] == [True, False]
    assert knows(ledger, query(0, "other"))
    assert knows(ledger, query(9, "later"))


def test_only_markers_past_the_files_mark_are_read(log: Log) -> None:
    log.commit(query(3))
    log.open().save()
    log.commit(query(4))
    file = min((log.path / "commitlog").iterdir())
    data = bytearray(file.read_bytes())
    data[data.index(b'"number":3')] ^= 1  # a body that fails its CRC would stop its reading
    file.write_bytes(data)
    assert knows(log.open(), query(4))


@pytest.mark.fault
@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"null", b"[]", b'{"version":4,"mark":0,"writers":[]}',
        b'{"version":3,"mark":1,"writers":[["stream","q",9,1,1,1,1,1,null,"xyz",{},""]]}',
        b'{"version":3,"mark":1,"writers":[["stream","q",9,1,1,1,1,1,null,null,[],""]]}',
        b'{"version":3,"mark":1,"writers":[["stream","q",9,1,1,1,1,1,null,null,{"a":"b"},""]]}',
        b'{"version":3,"mark":1,"writers":[["stream","q",9,1,1,1,1,1,-1,null,{},""]]}',
        b'{"version":3,"mark":1,"writers":[["stream","q",9,1,1,1,1,1,1e3,null,{},""]]}',
        b'{"version":3,"mark":1,"writers":[["stream","q",9,1,1,1,1,1,9e18,null,{},""]]}',
        b'{"version":3,"mark":1,"writers":[["stream","q",9,1,1,1,1,1,253402300800000,null,{},""]]}',
        b'{"version":3,"mark":1,"writers":[["stream","q",9,1,1,1,1,1,""]]}',
        b'{"version":[],"mark":0,"writers":[]}',
        b'{"version":2,"mark":1,"writers":[["stream","q",9,1,1,1,1]]}',
        b'{"version":2,"mark":1,"writers":[["stream","q",9,1,1,-1,1,1,""]]}',
        b'{"version":2,"mark":1,"writers":[["stream","q",9,1,1,1,1,1,7]]}',
        b'{"version":1,"mark":1,"writers":[["stream","q",9,1,1,1,1,1,""]]}',
        b'{"version":1,"mark":-5,"writers":[]}', b'{"version":1,"mark":true,"writers":[]}',
        b'{"version":1,"mark":0}', b'{"version":1,"mark":1,"writers":[["stream","q",9]]}',
        b'{"version":1,"mark":1,"writers":[["stream","q","9",1,1,1,1]]}',
        b'{"version":1,"mark":1,"writers":[["cash","q",9,1,1,1,1]]}',
        b'{"version":1,"mark":1,"writers":[["stream","\\ud800",9,1,1,1,1]]}',
        b'{"version":1,"mark":1,"writers":7}', b"[" * 100_000, b"\xff\xfe",
    ],
)  # fmt: skip
def test_a_damaged_file_is_made_anew_from_the_markers(log: Log, content: bytes) -> None:
    log.commit(query(3))
    Path(log.file).write_bytes(content)
    ledger = log.open()
    assert knows(ledger, query(3))
    assert not knows(ledger, query(4))
    ledger.save()
    assert json.loads(Path(log.file).read_bytes())["mark"] == 1


@pytest.mark.fault
def test_what_is_no_marker_is_passed_over(log: Log) -> None:
    log.put(b"", b"[]", b'{"kind":"stream"}', b'{"kind":[],"name":1}', b"\xff")
    log.commit(query(3))
    assert knows(log.open(), query(3))


def test_a_commit_that_was_cut_off_the_log_is_none(log: Log) -> None:
    (kept,) = log.commit(query(3))
    rows = [
        ["stream", "q", 4, 1, 1, 1, 1, kept + 500, ""],
        ["stream", "other", 0, 1, 1, 1, 1, kept + 900, ""],
    ]
    # What the file knows of lay behind the log's end, and so did its mark.
    Path(log.file).write_text(json.dumps({"version": 2, "mark": 3, "writers": rows}))
    ledger = log.open(log_end=kept + 500)
    assert [knows(ledger, query(n)) for n in (3, 4)] == [True, False]
    assert not knows(ledger, query(0, "other"))


def test_names_are_any_printable_text(log: Log) -> None:
    writers = [WriterId.of_batch("täglich \u96ea \U0001f600 'x\" \\", 3), query(1, "n" * 256)]
    for writer in writers:
        writer.check()
    log.commit(*writers)
    log.open().save()
    for _ in range(2):
        ledger = log.open()
        assert all(knows(ledger, writer) for writer in writers)
        Path(log.file).unlink(missing_ok=True)


def test_saving_leaves_the_old_file_or_the_new(log: Log) -> None:
    ledger = log.open()
    ledger.add(
        query(1), Committed(1, Content(2, 6, "0f" * 16, {"a": 2}), 3, 4, 5, TIME, "spark"), 0
    )
    ledger.save()
    assert Path(log.file).stat().st_mode & 0o777 == 0o600
    assert json.loads(Path(log.file).read_bytes()) == {
        "version": 3, "mark": 1,
        "writers": [["stream", "q", 1, 2, 3, 6, 4, 5, TIME, "0f" * 16, {"a": 2}, "spark"]],
    }  # fmt: skip


def test_what_the_file_says_already_is_not_written_again(log: Log) -> None:
    log.commit(query(3))
    log.open().save()
    Path(log.file).chmod(0o640)
    log.open().save()
    assert Path(log.file).stat().st_mode & 0o777 == 0o640  # the very same file
    log.commit(query(4))
    log.open().save()
    assert Path(log.file).stat().st_mode & 0o777 == 0o600


def test_no_more_is_remembered_than_fits(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ledger_module._MOST, "once", 3)
    ledger = log.open()
    writers = [WriterId.of_one_write() for _ in range(5)]
    for n, writer in enumerate(writers):
        ledger.add(writer, Committed(0, TEN, 1, 1, n), n)
    assert [knows(ledger, writer) for writer in writers] == [False, False, True, True, True]


@pytest.mark.threat("What one client can do to another")
@pytest.mark.parametrize("name", ["honest", 'tä\u96ea\\ "x","number":9'])
@pytest.mark.parametrize("kind", ["stream", "batch"])
def test_a_writer_that_made_way_for_others_is_looked_up_in_the_log(
    log: Log, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    monkeypatch.setitem(ledger_module._MOST, kind, 3)
    make = WriterId.of_stream if kind == "stream" else WriterId.of_batch
    log.commit(make(name, 6), make(name, 7), identity="spark-a")
    log.commit(*(make(f"flood-{n}", 1) for n in range(20)), identity="spark-b")
    for _ in range(2):
        ledger = log.open()
        assert len(ledger) == 3
        assert knows(ledger, make(name, 7))
        assert knows(ledger, make(name, 6))
        assert not knows(ledger, make(name, 8))
        assert not knows(ledger, make("new", 1))
        assert refusal(ledger, make(name, 7), Content(11, 500)).status == "MESSAGE_ILLEGAL"
        assert refusal(ledger, make(name, 5)).status == "MESSAGE_ILLEGAL"
        assert refusal(ledger, make(name, 8), identity="spark-b").status == "NO_PERMISSION"
        ledger.save()


@pytest.mark.parametrize(
    "writer",
    [
        query(-1), query(1 << 63), query(0, ""), query(0, "x" * 257), query(0, "a\x01b"),
        query(0, "a\nb"), query(0, "\x02"), WriterId("cash", "x", 0),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_writers_that_no_client_of_ours_has_are_refused(writer: WriterId) -> None:
    with pytest.raises(RefusedError) as raised:
        writer.check()
    assert raised.value.status == "MESSAGE_ILLEGAL"


def test_a_marker_says_whose_commit_it_is() -> None:
    stages = ("a" * 32, "b" * 32)
    value = {
        "version": 3, "kind": "stream", "name": "q", "number": 7, "rows": 100, "bytes": 12345,
        "bodyBytes": 3456, "physicalOffset": 4096, "storeTimestamp": TIME, "digest": "0f" * 16,
        "topics": {"orders": 60, "bills": 40}, "stages": list(stages),
    }  # fmt: skip
    content = Content(100, 3456, "0f" * 16, {"bills": 40, "orders": 60})
    assert json.loads(marker_body(query(7), content, 12345, 4096, TIME, stages)) == value
    owned = marker_body(query(7), content, 12345, 4096, TIME, stages, "spark")
    assert json.loads(owned) == {**value, "identity": "spark"}
    assert str(query(7)) == "batch 7 of query q"
    assert str(WriterId.of_batch("app", 2)) == "txnVersion 2 of txnAppId app"
