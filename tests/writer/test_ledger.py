"""What is known of commits: from markers in the log, and from a file where they have expired."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from rmqstore_spark.errors import RefusedError
from rmqstore_spark.reader.store import Store
from rmqstore_spark.writer import ledger as ledger_module
from rmqstore_spark.writer.ledger import MARKER_TOPIC, Committed, Ledger, WriterId, marker_body
from tests.support.storebuilder import StoreBuilder
from tests.support.traffic import Traffic

END = 1 << 62


def query(batch: int, name: str = "q") -> WriterId:
    return WriterId.of_stream(name, batch)


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

    def commit(self, *writers: WriterId) -> list[int]:
        """Append markers."""
        return self.put(*(marker_body(w, 10, 1000, 77, ("0" * 32,)) for w in writers))

    def open(self, log_end: int = END) -> Ledger:
        """Open the ledger as a new process does."""
        with Store.open(self.path) as store:
            return Ledger.open(self.file, store, log_end)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "store")


def test_a_store_without_commits_knows_none(log: Log) -> None:
    ledger = log.open()
    assert ledger.find(query(0)) is None
    assert len(ledger) == 0


def test_markers_in_the_log_tell_what_was_committed(log: Log) -> None:
    places = log.commit(query(0), query(1), WriterId.of_batch("app", 5))
    ledger = log.open()
    assert ledger.find(query(1)) == Committed(1, 10, 1000, 77, places[1])
    assert ledger.find(query(2)) is None
    assert ledger.find(WriterId.of_batch("app", 5)) == Committed(5, 10, 1000, 77, places[2])


def test_a_lower_number_than_the_last_counts_as_committed_too(log: Log) -> None:
    log.commit(query(7), WriterId.of_batch("app", 5))
    ledger = log.open()
    assert ledger.find(query(3)) is not None
    assert ledger.find(WriterId.of_batch("app", 0)) is not None
    ledger.add(query(2), Committed(2, 1, 1, 1, 1), 2)
    assert ledger.find(query(7)) is not None


def test_writers_of_other_names_and_kinds_are_others(log: Log) -> None:
    log.commit(query(7, "same"))
    ledger = log.open()
    assert ledger.find(query(1, "other")) is None
    assert ledger.find(WriterId.of_batch("same", 1)) is None
    once = WriterId.of_one_write()
    ledger.add(once, Committed(0, 1, 1, 1, 1), 1)
    assert ledger.find(once) is not None
    assert ledger.find(WriterId.of_one_write()) is None


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
    assert [ledger.find(query(3)) is not None, ledger.find(query(4)) is not None] == [True, False]
    assert ledger.find(query(0, "other")) is not None
    assert ledger.find(query(9, "later")) is not None


def test_only_markers_past_the_files_mark_are_read(log: Log) -> None:
    log.commit(query(3))
    log.open().save()
    log.commit(query(4))
    file = min((log.path / "commitlog").iterdir())
    data = bytearray(file.read_bytes())
    data[data.index(b'"number":3')] ^= 1  # a body that fails its CRC would stop its reading
    file.write_bytes(data)
    assert log.open().find(query(4)) is not None


@pytest.mark.fault
@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"null", b"[]", b'{"version":2,"mark":0,"writers":[]}',
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
    assert ledger.find(query(3)) is not None
    assert ledger.find(query(4)) is None
    ledger.save()
    assert json.loads(Path(log.file).read_bytes())["mark"] == 1


@pytest.mark.fault
def test_what_is_no_marker_is_passed_over(log: Log) -> None:
    log.put(b"", b"[]", b'{"kind":"stream"}', b'{"kind":[],"name":1}', b"\xff")
    log.commit(query(3))
    assert log.open().find(query(3)) is not None


def test_a_commit_that_was_cut_off_the_log_is_none(log: Log) -> None:
    (kept,) = log.commit(query(3))
    rows = [["stream", "q", 4, 1, 1, 1, kept + 500], ["stream", "other", 0, 1, 1, 1, kept + 900]]
    # What the file knows of lay behind the log's end, and so did its mark.
    Path(log.file).write_text(json.dumps({"version": 1, "mark": 3, "writers": rows}))
    ledger = log.open(log_end=kept + 500)
    assert [ledger.find(query(n)) is not None for n in (3, 4)] == [True, False]
    assert ledger.find(query(0, "other")) is None


def test_names_are_any_printable_text(log: Log) -> None:
    writers = [WriterId.of_batch("täglich \u96ea \U0001f600 'x\" \\", 3), query(1, "n" * 256)]
    for writer in writers:
        writer.check()
    log.commit(*writers)
    log.open().save()
    for _ in range(2):
        ledger = log.open()
        assert all(ledger.find(writer) for writer in writers)
        Path(log.file).unlink(missing_ok=True)


def test_saving_leaves_the_old_file_or_the_new(log: Log) -> None:
    ledger = log.open()
    ledger.add(query(1), Committed(1, 2, 3, 4, 5), 0)
    ledger.save()
    assert Path(log.file).stat().st_mode & 0o777 == 0o600
    assert json.loads(Path(log.file).read_bytes()) == {
        "version": 1, "mark": 1, "writers": [["stream", "q", 1, 2, 3, 4, 5]],
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
        ledger.add(writer, Committed(0, 1, 1, 1, n), n)
    assert [ledger.find(w) is not None for w in writers] == [False, False, True, True, True]


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
    body = json.loads(marker_body(query(7), 100, 12345, 4096, ("a" * 32, "b" * 32)))
    assert body == {
        "version": 1, "kind": "stream", "name": "q", "number": 7, "rows": 100, "bytes": 12345,
        "physicalOffset": 4096, "stages": ["a" * 32, "b" * 32],
    }  # fmt: skip
    assert str(query(7)) == "batch 7 of query q"
    assert str(WriterId.of_batch("app", 2)) == "txnVersion 2 of txnAppId app"
