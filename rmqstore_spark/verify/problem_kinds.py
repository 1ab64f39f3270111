"""Defines the kinds of problems that a verification can find. docs/verify.md shows this table."""

from __future__ import annotations

from typing import Final

__all__ = ["KINDS"]

KINDS: Final[dict[str, str]] = {
    # the log
    "record": "no whole record begins here; the text says how many bytes cannot be read",
    "body-crc": "a body does not match its bodyCRC",
    "record-crc": "a record does not match the CRC property that RocketMQ 5 put into it",
    "sys-flag": "bits that no broker sets, or a body that is not compressed as the bits say",
    "field": "a number that no broker writes there",
    "topic-name": "a topic that cannot be a folder's name; a note if only a broker refuses it",
    "properties": "properties that are not UTF-8, that RocketMQ drops, or that hold a run of zeros",
    "delay": "a delayed message whose DELAY is not a number: a starting broker ends the log there",
    "time-back": "a storeTimestamp before that of an earlier record",
    "log-file": "a file of the log that differs in size, has a wrong name, or is missing",
    "unchecked": "a file with 1,000 damaged places: the rest of it was not checked",
    # queues
    "missing-queue": "records of a queue that does not exist",
    "missing-entry": "a record without an entry, past the queue's end or before its beginning",
    "entry-unwritten": "an entry inside a queue that is not written",
    "entry-filler": "a filler after a queue's first message",
    "entry-outside": "an entry that points before the log's beginning or past its end",
    "entry-record": "an entry that points to a place where no record begins",
    "entry-identity": "an entry and its record differ in topic, queueId or queueOffset; reported "
    "at the one of the two that nothing else confirms",
    "entry-size": "an entry with another size than its record",
    "entry-pending": "an entry of a prepared or rolled-back record",
    "entry-before-begin": "an entry before a queue's beginning, neither expired nor a filler",
    "tags-code": "an entry whose tagsCode is not the hash of the TAGS, or not the due time",
    "ext-unit": "a tagsCode that is not the address of an extension unit of the record",
    "stale-entries": "entries past the end, left by an earlier crash",
    "undispatched": "entries that a killed broker writes to its queues when it starts again",
    "older-than-queue": "a record of a topic that was deleted and created again",
    "queue-file": "as `log-file`, of a queue",
    "no-queues": "a store without queues, or with queues of a kind that is not checked",
    # index
    "index-header": "a header that does not match the content",
    "index-slot": "a slot that does not point to its newest entry",
    "index-chain": "an entry that its chain does not reach, or a link out of its chain",
    "index-entry": "an entry that does not point to a record with its key",
    "index-time": "an entry with a wrong timeDiff",
    "missing-key": "a record's key that an index file should hold, but that cannot be found in it",
    "unindexed": "keys of records between or after the index files: a broker does not find them",
    # DLedger
    "dledger-entry": "an entry whose header does not match its place, its predecessor or the index",
    "dledger-index": "a unit that does not match its number or the unit before it",
    # the rest
    "state": "a broker has the store open, or was killed",
    "checkpoint": "a time after the log's newest record, or a missing or damaged checkpoint",
    "config": "a file of `config/` that is not JSON; a note if it is a `.bak`",
    "topic-config": "a queue that `topics.json` does not configure",
    "stray-file": "a file that does not belong there; an error if a broker refuses to start",
    "unreadable": "a file that could not be read, and why",
    "expired": "a file that expired while it was verified",
}
"""The meaning of each kind."""
