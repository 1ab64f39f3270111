"""Checks the files of a store without its records: segments, configuration, checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from rmqstore_spark.errors import CorruptStoreError
from rmqstore_spark.files.base import Files, join
from rmqstore_spark.files.log.log_folders import Segment
from rmqstore_spark.files.log.segments import Segments
from rmqstore_spark.layout.checkpoint import CHECKPOINT_SIZE, Checkpoint
from rmqstore_spark.layout.constants import LMQ_PREFIX, is_system_topic
from rmqstore_spark.layout.fastjson import parse_fastjson
from rmqstore_spark.reader.store import Store
from rmqstore_spark.verify.findings import Findings
from rmqstore_spark.verify.report import Severity
from rmqstore_spark.verify.snapshot import QueueBounds, Snapshot

__all__ = [
    "check_checkpoint",
    "check_configuration",
    "check_segments",
    "check_topics",
    "configured_topics",
]

_MAX_CONFIG: Final = 256 << 20
_TIMES: Final = (
    (0, "physicMsgTimestamp"),
    (8, "logicsMsgTimestamp"),
    (16, "indexMsgTimestamp"),
)


def check_segments(
    segments: Segments, findings: Findings, kind: str, *, unit: int = 1, growing: bool = False
) -> None:
    """Check that the files of a log have one size and no gaps, and that there are no others.

    Otherwise a broker refuses to start.

    Args:
        kind: the kind of the problems.
        unit: bytes of an entry. A file must hold a whole number of entries.
        growing: a broker writes the files. A new file can be listed before it has its full length.
    """
    for stray in segments.strays:
        text = f"{stray.reason}: a broker refuses it"
        findings.say("note" if growing else "error", "stray-file", (stray.path, None), text)
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
        findings.error(kind, place, f"no file holds the log from {start} to {end}")
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


def check_configuration(store: Store, findings: Findings) -> None:
    """Check that each file of `config/` can be read."""
    files = store.directory.files
    folder = join(store.path, "config")
    try:
        listing = files.list(folder)
    except FileNotFoundError:
        return
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
            say("config", (path, None), f"the configuration is not valid JSON: {fault}")


def _fault(files: Files, path: str) -> str:
    """Return why a configuration file cannot be read; empty if it can. An empty file is valid."""
    size = files.size(path)
    if size > _MAX_CONFIG:
        return f"too large ({size} bytes)"
    try:
        text = files.read(path, 0, size).decode("utf-8")
        if text.strip():
            parse_fastjson(text)
    except ValueError as error:
        return str(error)
    return ""


def configured_topics(store: Store) -> dict[str, int] | None:
    """Return the number of queues of each topic in topics.json; None if it cannot be used."""
    try:
        config = store.directory.config("topics.json")
    except CorruptStoreError:
        return None
    table = config.get("topicConfigTable") if isinstance(config, dict) else None
    if not isinstance(table, dict):
        return None
    found = {}
    for name, settings in table.items():
        numbers = [settings.get(key) for key in ("readQueueNums", "writeQueueNums")
                   ] if isinstance(settings, dict) else []  # fmt: skip
        found[str(name)] = max((n for n in numbers if type(n) is int), default=0)
    return found


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
