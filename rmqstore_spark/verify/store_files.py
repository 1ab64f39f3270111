"""Checks the files of a store without its records: segments, `config/`, progress, checkpoint."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from struct import unpack
from typing import Final

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.configfiles import DELAY_OFFSETS, SHAPES, impossible_delay, parse_config
from rmqstore_spark.files.log_files import Segment, segment_start
from rmqstore_spark.files.names import FLUSH_MARK_NAME, OWN_FOLDER
from rmqstore_spark.files.segments import Segments
from rmqstore_spark.files.systems.base import Files, join
from rmqstore_spark.layout.checkpoint import CHECKPOINT_SIZE, Checkpoint
from rmqstore_spark.layout.constants import BLANK_SIZE, LMQ_PREFIX, MAGIC_BLANK, is_system_topic
from rmqstore_spark.reader.groups import offsets_past_end
from rmqstore_spark.reader.log.end import flushed_end
from rmqstore_spark.reader.store import Store
from rmqstore_spark.verify.findings import Findings
from rmqstore_spark.verify.report import Severity
from rmqstore_spark.verify.snapshot import QueueBounds, Snapshot

_MAX_CONFIG: Final = 256 << 20
_TIMES: Final = (
    (0, "physicMsgTimestamp"),
    (8, "logicsMsgTimestamp"),
    (16, "indexMsgTimestamp"),
)
_FILE: Final = "consumerOffset.json"
_UNKNOWN_ENDS: Final = ("missing-queue", "no-queues")


def check_segments(
    segments: Segments, findings: Findings, kind: str, *, unit: int = 1, growing: bool = False
) -> None:
    """Check that the files of a log have one size and no gaps, and note others.

    Otherwise a broker refuses to start. Files whose names are not those of segments, such as a
    README or what an editor or NFS leaves, belong to nobody here, and are only noted.

    Args:
        kind: the kind of the problems.
        unit: bytes of an entry. A file must hold a whole number of entries.
        growing: a broker writes the files. A new file can be listed before it has its full length.
    """
    for stray in segments.strays:
        is_named = segment_start(stray.path.rsplit("/", 1)[-1]) is not None
        text = f"{stray.reason}: a broker refuses to start beside it"
        severity: Severity = "error" if is_named and not growing else "note"
        findings.say(severity, "stray-file", (stray.path, None), text)
    if not len(segments):
        return
    size, odd = _usual_size(segments)
    for segment in odd:
        findings.error(
            kind, (segment.path, None),
            f"the file differs in size from the others ({size} bytes): a broker refuses it",
        )  # fmt: skip
    last = segments[-1]
    if last.size != size:
        findings.say(
            "note" if last.size < size or growing else "error", kind, (last.path, last.size),
            f"the last file has {last.size} bytes, the others {size}: a broker refuses it",
        )  # fmt: skip
    for start, end in segments.gaps:
        place = ", ".join(segments.folders), None
        findings.error(kind, place, f"no file holds what is from {start} to {end}")
    for segment in segments:
        if segment.start % size or segment.start % unit:
            findings.error(
                kind, (segment.path, None),
                f"the name is not a multiple of the files' size ({size} bytes)",
            )  # fmt: skip


def _usual_size(segments: Segments) -> tuple[int, list[Segment]]:
    """Return the size of most files, and the files of other sizes except the last file."""
    sizes = Counter(segment.size for segment in segments)
    size = max(sizes, key=lambda value: (sizes[value], value))
    odd = {segment for segment in list(segments)[:-1] if segment.size != size}
    # A file that is too long overlaps the next one. `Segments` cuts it there.
    odd |= set(segments.odd_sizes) if segments.segment_size == size else {segments[0]}
    return size, sorted(odd)


def check_reach(store: Store, snapshot: Snapshot, findings: Findings) -> None:
    """Check that the log reaches as far as it was flushed, and as far as the index names it.

    `verify.queues` checks that of the entries in queues.
    """
    if snapshot.being_written or store.log.dledger is not None:
        return
    flushed = flushed_end(store.directory.files, store.path)
    if flushed > _end_with_blank(store, snapshot.end):
        findings.error(
            "log-end", (join(store.path, OWN_FOLDER, FLUSH_MARK_NAME), None),
            f"the log was flushed up to physical offset {flushed}, and ends at {snapshot.end}",
        )  # fmt: skip
    for file in snapshot.index:
        if file.keys and file.header.end_phy_offset >= snapshot.file_end:
            findings.error(
                "log-end", (file.path, None),
                f"a key is of a record at physical offset {file.header.end_phy_offset}, but the "
                f"files of the log end at {snapshot.file_end}",
            )  # fmt: skip


def _end_with_blank(store: Store, end: int) -> int:
    """Return where a log ends whose last record may be followed by a blank up to its file's end."""
    segment = store.log.segment_at(end)
    if segment is None or segment.end - end < BLANK_SIZE:
        return end
    size, magic = unpack(">ii", store.log.read(end, BLANK_SIZE))
    return segment.end if (size, magic) == (segment.end - end, MAGIC_BLANK) else end


def check_configuration(store: Store, findings: Findings) -> None:
    """Check that each file of `config/` is JSON of the shape that its name tells."""
    files = store.directory.files
    folder = join(store.path, "config")
    try:
        listing = files.list(folder)
    except FileNotFoundError:
        return
    names = {info.name for info in listing}
    for info in listing:
        spare = info.name.endswith(".bak")
        if info.is_dir or not info.name.removesuffix(".bak").endswith(".json"):
            continue
        findings.counts["configFiles"] += 1
        path = join(folder, info.name)
        try:
            fault = _fault(files, path)
        except FileNotFoundError:
            continue  # a broker replaced it after it was listed
        if fault:
            say = findings.note if spare else findings.error
            say("config", (path, None), fault)
        elif spare and info.name.removesuffix(".bak") not in names:
            findings.note("config", (path, None), "the file of which this is an older copy is gone")


def _fault(files: Files, path: str) -> str:
    """Return what is wrong with a configuration file; empty if nothing is."""
    name = os.path.basename(path).removesuffix(".bak")
    size = files.size(path)
    if size > _MAX_CONFIG:
        return f"the file is too large ({size} bytes)"
    try:
        found = parse_config(files.read(path, 0, size), path, SHAPES.get(name))
    except CorruptStoreError as error:
        return error.cause
    if name != DELAY_OFFSETS:
        return ""
    faults = (impossible_delay(*entry) for entry in found["offsetTable"].items())
    return next(filter(None, faults), "")


def configured_topics(store: Store) -> dict[str, int] | None:
    """Return the number of queues of each topic in topics.json; None if it cannot be used."""
    try:
        config = store.directory.config("topics.json")
    except CorruptStoreError:
        return None
    if config is None:
        return None
    keys = ("readQueueNums", "writeQueueNums")
    return {
        name: max(settings.get(key) or 0 for key in keys)
        for name, settings in config["topicConfigTable"].items()
    }


def check_topics(
    queues: Iterable[QueueBounds], configured: dict[str, int] | None, store: Store,
    findings: Findings,
) -> None:  # fmt: skip
    """Note queues that topics.json does not configure."""
    if configured is None:
        return
    for queue in queues:
        if is_system_topic(queue.topic) or queue.topic.startswith(LMQ_PREFIX):
            continue
        folder = join(store.path, "consumequeue", queue.topic, str(queue.queue_id))
        if queue.topic not in configured:
            findings.note("topic-config", (folder, None), "topics.json does not name the topic")
        elif queue.queue_id >= configured[queue.topic]:
            findings.note(
                "topic-config", (folder, None),
                f"topics.json gives the topic {configured[queue.topic]} queues",
            )  # fmt: skip


def check_checkpoint(store: Store, snapshot: Snapshot, findings: Findings) -> None:
    """Check the times of the checkpoint against the oldest and newest record of the log."""
    path = store.directory.checkpoint_path
    files = store.directory.files
    try:
        size = files.size(path)
        data = files.read(path, 0, CHECKPOINT_SIZE)
    except FileNotFoundError:
        findings.note("checkpoint", (path, None), "the checkpoint is missing")
        return
    try:
        checkpoint = Checkpoint.decode(data, file=path)
    except CorruptStoreError as error:
        # A broker overwrites the file from time to time.
        severity: Severity = "note" if snapshot.being_written else "error"
        findings.say(severity, "checkpoint", (path, None), error.cause)
        return
    if size != CHECKPOINT_SIZE:
        findings.note("checkpoint", (path, None), f"the file has {size} bytes, not 4096")
    if any(data[40:]):
        findings.note("checkpoint", (path, 40), "the file has data after its fields")
    times = (
        checkpoint.physic_msg_timestamp,
        checkpoint.logics_msg_timestamp,
        checkpoint.index_msg_timestamp,
    )
    for (offset, name), time in zip(_TIMES, times, strict=True):
        if time < 0:
            findings.error("checkpoint", (path, offset), f"{name} is negative: {time}")
        elif time > findings.newest and not snapshot.being_written:
            # A killed broker can lose records that it dispatched, but not records that it flushed.
            lost = snapshot.killed and offset > 0
            findings.say(
                "note" if lost else "error", "checkpoint", (path, offset),
                f"{name} is {time}, but the newest record was stored at "
                f"{findings.newest}",
            )  # fmt: skip
        elif name == "logicsMsgTimestamp" and 0 < time < findings.oldest < findings.newest:
            findings.note(
                "checkpoint", (path, offset),
                f"{name} is {time}, but the oldest record was stored at "
                f"{findings.oldest}",
            )  # fmt: skip


def check_progress(store: Store, snapshot: Snapshot, findings: Findings) -> None:
    """Note offsets past the ends of queues: the log may have lost what was consumed.

    While a broker writes, offsets are newer than the snapshot. In a DLedger group they may be ahead
    of what is known to be committed. The ends of batch queues, and of those in RocksDB, are not
    known here, nor those of missing queues if the log has records of any.
    """
    directory = store.directory
    if snapshot.being_written or store.log.dledger is not None or directory.has_rocksdb_queues:
        return
    try:
        table = (directory.config(_FILE) or {}).get("offsetTable", {})
    except CorruptStoreError:
        return  # said by the check of the configuration
    ends = {(queue.topic, queue.queue_id): queue.max_offset for queue in snapshot.queues}
    is_complete = findings.totals.keys().isdisjoint(_UNKNOWN_ENDS)
    later = "; a start may complete it from the log" if snapshot.killed else ""
    for past in offsets_past_end(table, ends, snapshot.configured_topics or ()):
        route = past.topic, past.queue_id
        if route in snapshot.batch_queues or not (is_complete or route in ends):
            continue
        findings.note(
            "group-offset", (join(store.path, "config", _FILE), None),
            f"group {past.group} is at offset {past.offset} of {past.topic}/{past.queue_id}, which "
            f"ends at {past.max_offset}{later}",
        )  # fmt: skip
