"""`rmqstore info`: shows what a store is, and its state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

import typer

from rmqstore_spark.cli.shared.parameters import AsJson, StoreAt, connect
from rmqstore_spark.cli.shared.tables import json_text, print_facts, show_time
from rmqstore_spark.errors import CorruptStoreError, StoreAccessError
from rmqstore_spark.files.systems.schemes import is_endpoint

if TYPE_CHECKING:
    from rmqstore_spark.files.segments import Segments
    from rmqstore_spark.files.systems.base import Skipped
    from rmqstore_spark.reader.queue import Queue
    from rmqstore_spark.reader.store import Store, Topic

_SIDECAR: Final = "READ_ONLY"
_MOST_MILLIS: Final = 253_402_300_799_999


def info(
    as_json: AsJson = False,
    *,
    where: StoreAt,
) -> None:
    """Show the kind and the state of a store.

    Prints kind, size, offsets, times, topics, checkpoint and skipped files.
    """
    with where.open() as store:
        document = _describe(store)
    if is_endpoint(where.store_path):
        document.update(_served(where.store_path))
    if as_json:
        typer.echo(json_text(document, indent=2))
    else:
        print_facts(_facts(document))


def _describe(store: Store) -> dict[str, Any]:
    queues = store.queues()
    index_files, index_skipped = store.directory.index_files()
    skipped = [*_strays(store), *store.directory.topology.skipped, *index_skipped]
    checkpoint = _checkpoint(store, skipped)
    topics = _topics(store, skipped)
    lacking = store.why_no_queues if store.lacks_queues else None
    first, last, end = _edges(store, queues)
    return {
        "path": store.path,
        "brokerName": store.broker_name,
        "kind": _kind(store),
        "signsOf5": _signs_of_5(store, checkpoint),
        "state": _state(store),
        "commitLog": _log(store),
        "minPhysicalOffset": store.min_offset,
        "maxPhysicalOffset": end,
        "firstStoreTimestamp": first,
        "lastStoreTimestamp": last,
        "lacksQueues": lacking,
        **(dict.fromkeys(_COUNTED) if lacking else _counts(topics, queues)),
        "indexFiles": len(index_files),
        "indexBytes": sum(file.size for file in index_files),
        "checkpoint": checkpoint,
        "skipped": [{"path": item.path, "reason": item.reason} for item in skipped],
    }


def _served(endpoint: str) -> dict[str, Any]:
    """Return what the process says that writes a store: its readers may see a closed one."""
    with connect(endpoint) as client:
        figures = client.stats()
    return {} if figures["state"] == _SIDECAR else {"state": "being written"}


def _topics(store: Store, skipped: list[Skipped]) -> list[Topic]:
    """Return the topics of `topics --all`; if topics.json cannot be read, those with queues."""
    from rmqstore_spark.files.systems.base import Skipped, join
    from rmqstore_spark.reader.topics import topics_with_queues

    try:
        return store.topics()
    except CorruptStoreError as error:
        skipped.append(Skipped(error.file, error.cause))
    except StoreAccessError:
        file = join(store.path, "config", "topics.json")
        skipped.append(Skipped(file, "no permission to read it"))
    return topics_with_queues(store.directory)


_COUNTED: Final = (
    "topics", "systemTopics", "topicsWithQueues", "systemTopicsWithQueues", "queues", "messages",
)  # fmt: skip


def _counts(topics: Sequence[Topic], queues: Sequence[Queue]) -> dict[str, int]:
    held = [topic for topic in topics if topic.queue_ids]
    counts = (
        len(topics),
        sum(topic.is_system for topic in topics),
        len(held),
        sum(topic.is_system for topic in held),
        len(queues),
        sum(queue.max_offset - queue.min_offset for queue in queues),
    )
    return dict(zip(_COUNTED, counts, strict=True))


def _logs(store: Store) -> list[Segments]:
    return [log for log in (store.log.plain, store.log.dledger) if log is not None and len(log)]


def _kind(store: Store) -> str:
    if store.log.dledger is not None or store.directory.is_member:
        return "dledger"
    return "multipath" if len(store.log.plain.folders) > 1 else "plain"


def _signs_of_5(store: Store, checkpoint: dict[str, Any] | None) -> list[str]:
    signs = store.directory.marks_of_5
    if checkpoint and (checkpoint["masterFlushedOffset"] or checkpoint["confirmPhyOffset"]):
        signs.append("checkpoint")
    return signs


def _state(store: Store) -> str:
    if store.is_closed_cleanly:
        return "closed"
    files = store.directory.files
    if not files.is_local and getattr(files, "is_written", None) is None:
        return "open or killed"
    if store.is_being_written:
        return "being written"
    return "without queues" if store.directory.never_served else "killed"


def _log(store: Store) -> dict[str, Any]:
    logs = _logs(store)
    return {
        "folders": [folder for log in logs for folder in log.folders],
        "segments": sum(len(log) for log in logs),
        "segmentSize": max((log.segment_size for log in logs), default=0),
        "bytes": sum(segment.size for log in logs for segment in log),
        "gaps": [list(gap) for log in logs for gap in log.gaps],
    }


def _strays(store: Store) -> list[Skipped]:
    return [stray for log in _logs(store) for stray in log.strays]


def _checkpoint(store: Store, skipped: list[Skipped]) -> dict[str, Any] | None:
    from rmqstore_spark.files.systems.base import Skipped

    try:
        found = store.checkpoint
    except CorruptStoreError as error:
        skipped.append(Skipped(error.file, error.cause))
        return None
    if found is None:
        return None
    return {
        "physicMsgTimestamp": _moment(found.physic_msg_timestamp),
        "logicsMsgTimestamp": _moment(found.logics_msg_timestamp),
        "indexMsgTimestamp": _moment(found.index_msg_timestamp),
        "masterFlushedOffset": found.master_flushed_offset,
        "confirmPhyOffset": found.confirm_phy_offset,
    }


def _edges(store: Store, queues: Sequence[Queue]) -> tuple[str | None, str | None, int]:
    """Return the times of the first and the last record, and where the last one ends."""
    from rmqstore_spark.reader.log.end import record_head

    segment = next(iter(store.log.segments()), None)
    if segment is None:
        return None, None, store.min_offset
    first = record_head(store.log, segment.start + segment.lead)
    last = _last_physical_offset(store, queues)
    record = record_head(store.log, last) if last >= 0 else None
    if record is None:
        time, end = _walked(store)
    else:
        time = int(record.store_timestamp[0])
        end = last + int(record.store_size[0])
    return (
        _moment(int(first.store_timestamp[0])) if first is not None else None,
        _moment(time),
        end,
    )


def _last_physical_offset(store: Store, queues: Sequence[Queue]) -> int:
    """Return the greatest physical offset that a queue's last entry has; -1 if all are empty.

    Raises:
        CorruptStoreError: a last entry is empty or damaged.
    """
    import numpy as np

    from rmqstore_spark.reader.queue_ends import last_entries

    held = [queue for queue in queues if queue.max_offset > queue.min_offset]
    queue_format = store.directory.queue_format
    entries = last_entries(queue_format, held)
    live = queue_format.is_message(entries) | queue_format.is_void(entries)
    for number in np.flatnonzero(~live)[:1].tolist():
        queue = held[number]
        queue.live_entries(queue.max_offset - 1, queue.max_offset)  # raises the error
    return int(entries["physicalOffset"].astype(np.int64).max(initial=-1))


def _walked(store: Store) -> tuple[int, int]:
    """Return time and end of the last record, by walking the log's last segment that has any."""
    from rmqstore_spark.reader.log.walk import Stretch, walk_log

    end = store.scan_end()
    for segment in reversed(list(store.log.segments())):
        last = None
        for item in walk_log(store.log, segment.start, min(segment.end, end), check_crc=False):
            if isinstance(item, Stretch):
                last = int(item.records.store_timestamp[-1]), item.end
        if last is not None:
            return last
    return 0, store.min_offset


def _moment(millis: int) -> str | None:
    """Return a time of the store as text; None if it was never set, or is out of range."""
    if not 0 < millis <= _MOST_MILLIS:
        return None
    return show_time(
        datetime.fromtimestamp(millis // 1000, timezone.utc) + timedelta(milliseconds=millis % 1000)
    )


_STATES: Final = {
    "closed": "closed cleanly",
    "being written": "being written: a broker or a store process has the store open",
    "killed": "killed: file abort exists, and no process has the store open",
    "without queues": "closed or killed: a member that served no clients, and has no queues",
    "open or killed": "open or killed: file abort exists; a broker has it open, or was killed",
}


def _facts(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    log, checkpoint = document["commitLog"], document["checkpoint"]
    signs = document["signsOf5"]
    yield "store", document["path"]
    yield "broker", document["brokerName"]
    yield "kind", document["kind"] + (f" (RocketMQ 5: {', '.join(signs)})" if signs else "")
    yield "state", _STATES[document["state"]]
    yield (
        "log",
        f"{_bytes(log['bytes'])} in {log['segments']} file(s) of {_bytes(log['segmentSize'])}",
    )
    if log["folders"] != [f"{document['path']}/commitlog"]:
        yield "log folders", ", ".join(log["folders"])
    for begin, end in log["gaps"]:
        yield "missing", f"no file contains {begin} to {end} of the log"
    yield "offsets", f"{document['minPhysicalOffset']} to {document['maxPhysicalOffset']}"
    yield "first stored", document["firstStoreTimestamp"] or "-"
    yield "last stored", document["lastStoreTimestamp"] or "-"
    if document["lacksQueues"]:
        yield "queues", f"none: {document['lacksQueues']}"
        yield "messages", "unknown without queues; `rmqstore topics` counts the messages in the log"
    else:
        yield "topics", _counted_topics(document)
        yield "queues", str(document["queues"])
        yield "messages", str(document["messages"])
    yield "index", f"{_bytes(document['indexBytes'])} in {document['indexFiles']} file(s)"
    if checkpoint is None:
        yield "checkpoint", "none"
    else:
        yield (
            "checkpoint",
            ", ".join(
                f"{what} {checkpoint[name] or '-'}"
                for what, name in (
                    ("log", "physicMsgTimestamp"),
                    ("queues", "logicsMsgTimestamp"),
                    ("index", "indexMsgTimestamp"),
                )
            ),
        )
    for item in document["skipped"]:
        yield "skipped", f"{item['path']}: {item['reason']}"


def _counted_topics(document: Mapping[str, Any]) -> str:
    """Return the number of topics, and how many of them have queues."""
    system, system_held = document["systemTopics"], document["systemTopicsWithQueues"]
    users, users_held = document["topics"] - system, document["topicsWithQueues"] - system_held
    return (
        f"{users}, {users_held} of them with queues; {system} system topic(s), {system_held} of "
        "them with queues"
    )


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
