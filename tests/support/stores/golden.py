"""The golden stores: what RocketMQ wrote, and what RocketMQ itself says is in it.

`tests/golden/README.md` tells what each store holds and how the archives are made.
"""

from __future__ import annotations

import base64
import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard

__all__ = [
    "GOLDEN_NAMES",
    "SHIPPED_NAMES",
    "EntryReport",
    "GoldenStores",
    "GoldenUnavailableError",
    "IndexFileReport",
    "KeyReport",
    "QueueReport",
    "QueuesReport",
    "RecordReport",
    "StoreMeta",
    "load_entries",
    "load_meta",
    "load_queues",
    "load_records",
]

ROOT = Path(__file__).resolve().parents[3]
ARCHIVES = ROOT / "tests" / "golden"

_ARCHIVE_OF = {
    "ha-master": "ha",
    "ha-slave": "ha",
    "unclean-crc": "unclean",
    "unclean-nocheckpoint": "unclean",
    "unclean-nocq": "unclean",
    "unclean-tail": "unclean",
    "unclean-torn": "unclean",
}
"""Stores that share an archive because they hold nearly the same bytes."""

GOLDEN_NAMES: tuple[str, ...] = (
    "basic",
    "batch",
    "boundary",
    "delayed",
    "dledger",
    "extcq",
    "flags",
    "ha-master",
    "ha-slave",
    "ipv6",
    "live",
    "lmq",
    "multipath",
    "tiny",
    "transactions",
    "trimmed",
    "trimmed-raw",
    "unclean",
    "unclean-crc",
    "unclean-nocheckpoint",
    "unclean-nocq",
    "unclean-tail",
    "unclean-torn",
    "v5basic",
    "v5v2topic",
)


def _parts(name: str) -> list[Path]:
    """The files of the archive that holds the store, in order; empty when it is not here."""
    archive = f"{_ARCHIVE_OF.get(name, name)}.tar.zst"
    whole = ARCHIVES / archive
    return [whole] if whole.is_file() else sorted(ARCHIVES.glob(f"{archive}.[0-9]"))


SHIPPED_NAMES: tuple[str, ...] = tuple(name for name in GOLDEN_NAMES if _parts(name))
"""The golden stores that come with this repository."""


class GoldenUnavailableError(Exception):
    """A golden store is not in this repository."""


class GoldenStores:
    """Unpacks golden stores on demand, each once, below one folder.

    Args:
        folder: where to unpack; what lies there is not looked at.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unpacked: set[str] = set()

    def __call__(self, name: str) -> Path:
        """Return the folder of a golden store, to be read only: copy it before changing it.

        Args:
            name: one of GOLDEN_NAMES.

        Returns:
            The folder that holds `store/`, `meta.json`, `records.jsonl`, `queues.json` and
            `consumequeue.jsonl`.

        Raises:
            GoldenUnavailableError: there is no archive with this store.
        """
        if name not in self._unpacked:
            self._unpack(name)
        return self._folder / name

    def _unpack(self, name: str) -> None:
        parts = _parts(name)
        if not parts:
            raise GoldenUnavailableError(f"no archive of the golden store {name!r} in {ARCHIVES}")
        packed = io.BytesIO(b"".join(part.read_bytes() for part in parts))
        plain = zstandard.ZstdDecompressor().stream_reader(packed)
        with tarfile.open(fileobj=cast("BinaryIO", plain), mode="r|") as archive:
            self._extract(archive)

    def _extract(self, archive: tarfile.TarFile) -> None:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(self._folder, filter="data")
        else:  # Python before 3.10.12; the archives are our own
            archive.extractall(self._folder)
        self._unpacked |= {path.name for path in self._folder.iterdir()}


@dataclass(frozen=True)
class StoreMeta:
    """How the store was configured (`meta.json`); sizes in bytes.

    Args:
        raw: the whole file.
    """

    commitlog_file_size: int
    consumequeue_file_size: int
    index_slots: int
    index_entries: int
    raw: dict[str, Any]


@dataclass(frozen=True)
class RecordReport:
    """One CommitLog record as RocketMQ decodes it (a line of `records.jsonl`).

    Args:
        body: the stored bytes.
        body_uncompressed: the body after decompression, for records whose sysFlag says
            that it is compressed.
        properties: as RocketMQ parses `properties_raw`.
        raw: the whole line.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_size: int
    body_crc: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    body_uncompressed: bytes | None
    properties: dict[str, str]
    properties_raw: bytes
    msg_id: str
    crc_ok: bool
    raw: dict[str, Any]

    @property
    def plain_body(self) -> bytes:
        """The body as a consumer gets it."""
        return self.body if self.body_uncompressed is None else self.body_uncompressed


@dataclass(frozen=True)
class EntryReport:
    """One ConsumeQueue entry (a line of `consumequeue.jsonl`).

    Args:
        offset: the entry's place in its queue.
        tags_code: as stored: where there is an extension unit, its address.
        ext_tags_code: tags code in the extension unit, None where there is no unit.
        ext_store_time: milliseconds.
        ext_bit_map: the unit's filter bits.
        ext_size: of the unit, in bytes.
    """

    topic: str
    queue_id: int
    offset: int
    physical_offset: int
    size: int
    tags_code: int
    ext_tags_code: int | None
    ext_store_time: int | None
    ext_bit_map: bytes | None
    ext_size: int | None


@dataclass(frozen=True)
class QueueReport:
    """What RocketMQ reports for one queue.

    Args:
        max_physical_offset: end of the last record that the queue knows, -1 for none.
        readable: messages that a consumer could pull.
        offset_by_time: offset by time in milliseconds, by RocketMQ's rule (nearest
            neighbour in a file chosen by its modification time).
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    max_physical_offset: int
    readable: int
    offset_by_time: dict[int, int]


@dataclass(frozen=True)
class KeyReport:
    """What RocketMQ's key query answers.

    Args:
        max_num: how many the query asked for at most; None where that is not reported (5.x).
        begin, end: storeTimestamp limits of the query, milliseconds.
        physical_offsets: of the messages, ascending.
        raw_index_offsets: in the order of the index chains (None where not reported).
        with_key: those whose record really has the key (None where not reported).
    """

    topic: str
    key: str
    max_num: int | None
    begin: int
    end: int
    physical_offsets: tuple[int, ...]
    raw_index_offsets: tuple[int, ...] | None
    with_key: tuple[int, ...] | None


@dataclass(frozen=True)
class IndexFileReport:
    """The header of one index file."""

    file: str
    begin_timestamp: int
    end_timestamp: int
    begin_physical_offset: int
    end_physical_offset: int
    hash_slot_count: int
    index_count: int


@dataclass(frozen=True)
class QueuesReport:
    """What RocketMQ reports for a copy of the store, after its recovery (`queues.json`).

    Args:
        queues: by topic and queueId. Empty queues of SCHEDULE_TOPIC_XXXX may exist in the
            broker's memory only.
        raw: the whole file.
    """

    min_physical_offset: int
    max_physical_offset: int
    queues: dict[tuple[str, int], QueueReport]
    keys: tuple[KeyReport, ...]
    index_files: tuple[IndexFileReport, ...]
    raw: dict[str, Any]


def _json(path: Path) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(path.read_bytes()))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    # Not str.splitlines: properties may hold other characters that end a line for it.
    with path.open("rb") as file:
        for line in file:
            yield json.loads(line)


def load_meta(folder: Path) -> StoreMeta:
    """Read `meta.json` of a golden store's folder."""
    raw = _json(folder / "meta.json")
    return StoreMeta(
        commitlog_file_size=raw["mappedFileSizeCommitLog"],
        consumequeue_file_size=raw["mappedFileSizeConsumeQueue"],
        index_slots=raw["maxHashSlotNum"],
        index_entries=raw["maxIndexNum"],
        raw=raw,
    )


def load_records(folder: Path) -> list[RecordReport]:
    """Read `records.jsonl` of a golden store's folder, in physical order."""
    return list(_records((folder / "records.jsonl").read_bytes()))


@lru_cache(maxsize=6)  # a module's tests read the same ones again and again
def _records(data: bytes) -> tuple[RecordReport, ...]:
    return tuple(_record(json.loads(line)) for line in data.split(b"\n") if line)


def _record(raw: dict[str, Any]) -> RecordReport:
    uncompressed = raw.get("bodyUncompressed")
    return RecordReport(
        topic=raw["topic"],
        queue_id=raw["queueId"],
        queue_offset=raw["queueOffset"],
        physical_offset=raw["physicalOffset"],
        store_size=raw["storeSize"],
        body_crc=raw["bodyCRC"],
        flag=raw["flag"],
        sys_flag=raw["sysFlag"],
        born_timestamp=raw["bornTimestamp"],
        born_host=raw["bornHost"],
        store_timestamp=raw["storeTimestamp"],
        store_host=raw["storeHost"],
        reconsume_times=raw["reconsumeTimes"],
        prepared_transaction_offset=raw["preparedTransactionOffset"],
        body=base64.b64decode(raw["body"]),
        body_uncompressed=None if uncompressed is None else base64.b64decode(uncompressed),
        properties=raw["properties"],
        properties_raw=base64.b64decode(raw["propertiesRaw"]),
        msg_id=raw["msgId"],
        crc_ok=raw["crcOk"],
        raw=raw,
    )


def load_entries(folder: Path) -> dict[tuple[str, int], list[EntryReport]]:
    """Read `consumequeue.jsonl` of a golden store's folder: entries by topic and queueId."""
    queues: dict[tuple[str, int], list[EntryReport]] = {}
    for raw in _lines(folder / "consumequeue.jsonl"):
        bits = raw.get("extBitMap")
        entry = EntryReport(
            topic=raw["topic"],
            queue_id=raw["queueId"],
            offset=raw["cqOffset"],
            physical_offset=raw["phyOffset"],
            size=raw["size"],
            tags_code=raw["tagsCode"],
            ext_tags_code=raw.get("extTagsCode"),
            ext_store_time=raw.get("extStoreTime"),
            ext_bit_map=None if bits is None else base64.b64decode(bits),
            ext_size=raw.get("extSize"),
        )
        queues.setdefault((entry.topic, entry.queue_id), []).append(entry)
    return queues


def load_queues(folder: Path, file: str = "queues.json") -> QueuesReport:
    """Read `queues.json` (or another file of its kind) of a golden store's folder."""
    raw = _json(folder / file)
    queues = [_queue(queue) for queue in raw["queues"]]
    return QueuesReport(
        min_physical_offset=raw["minPhyOffset"],
        max_physical_offset=raw["maxPhyOffset"],
        queues={(queue.topic, queue.queue_id): queue for queue in queues},
        keys=tuple(_key(key) for key in raw["keys"]),
        index_files=tuple(_index_file(index) for index in raw["indexFiles"]),
        raw=raw,
    )


def _queue(raw: dict[str, Any]) -> QueueReport:
    return QueueReport(
        topic=raw["topic"],
        queue_id=raw["queueId"],
        min_offset=raw["minOffset"],
        max_offset=raw["maxOffset"],
        max_physical_offset=raw["maxPhysicOffset"],
        readable=raw["readable"],
        offset_by_time={int(time): offset for time, offset in raw["offsetByTime"].items()},
    )


def _key(raw: dict[str, Any]) -> KeyReport:
    def offsets(name: str) -> tuple[int, ...] | None:
        found: Sequence[int] | None = raw.get(name)
        return None if found is None else tuple(found)

    return KeyReport(
        topic=raw["topic"],
        key=raw["key"],
        max_num=raw.get("maxNum"),
        begin=raw.get("begin", 0),
        end=raw.get("end", 2**63 - 1),
        physical_offsets=tuple(raw["phyOffsets"]),
        raw_index_offsets=offsets("rawIndexOffsets"),
        with_key=offsets("phyOffsetsWithKey"),
    )


def _index_file(raw: dict[str, Any]) -> IndexFileReport:
    return IndexFileReport(
        file=raw["file"],
        begin_timestamp=raw["beginTimestamp"],
        end_timestamp=raw["endTimestamp"],
        begin_physical_offset=raw["beginPhyOffset"],
        end_physical_offset=raw["endPhyOffset"],
        hash_slot_count=raw["hashSlotCount"],
        index_count=raw["indexCount"],
    )
