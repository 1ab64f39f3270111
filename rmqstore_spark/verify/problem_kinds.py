"""Defines the kinds of problems that a verification can find. docs/verify.md shows this table."""

from __future__ import annotations

from typing import Final

__all__ = ["KINDS"]

KINDS: Final[dict[str, str]] = {
    # the log
    "record": "no whole record stands here; how many bytes cannot be read",
    "body-crc": "a body does not match its bodyCRC",
    "record-crc": "a record does not match the CRC property that RocketMQ 5 put into it",
    "sys-flag": "bits that no broker sets, or a body that is not compressed as they say",
    "field": "a number that no broker writes there",
    "topic-name": "a topic that cannot be a folder's name; a note where only a broker refuses it",
    "properties": "properties that are not UTF-8, that RocketMQ drops, or that hold a run of zeros",
    "delay": "a delayed message whose DELAY is no number: a broker's start ends the log there",
    "time-back": "a storeTimestamp before that of an earlier record",
    "log-file": "a file of the log has another length than the others, a wrong name, or is missing",
    "unchecked": "a file with 1,000 damaged places: the rest of it was left out",
    # queues
    "missing-queue": "records of a queue that is not there",
    "missing-entry": "a record without an entry, behind the queue's end or before its begin",
    "entry-unwritten": "an entry inside a queue that is not written",
    "entry-filler": "a filler behind a queue's first message",
    "entry-outside": "an entry that leads to before the log's begin or past its end",
    "entry-record": "an entry that leads to where no record begins",
    "entry-identity": "an entry and its record disagree on topic, queueId or queueOffset; placed "
    "at the one of the two that nothing else bears out",
    "entry-size": "an entry with another size than its record",
    "entry-pending": "an entry of a prepared or rolled-back record",
    "entry-before-begin": "an entry before a queue's begin that is neither expired nor a filler",
    "tags-code": "an entry whose tagsCode is not the hash of the TAGS, or not the time when due",
    "ext-unit": "a tagsCode that is no address of an extension unit of the record",
    "stale-entries": "entries behind the end that an earlier crash has left",
    "undispatched": "what the next start of a killed broker puts into its queues",
    "older-than-queue": "a record of a topic that was deleted and made anew",
    "queue-file": "as `log-file`, of a queue",
    "no-queues": "a store without queues, or with queues of a kind that is not looked into",
    # index
    "index-header": "a header that does not fit the content",
    "index-slot": "a slot that does not lead to its newest entry",
    "index-chain": "an entry that its chain does not lead to, or a link out of a chain",
    "index-entry": "an entry that leads to no record with its key",
    "index-time": "an entry with a wrong timeDiff",
    "missing-key": "a record's key that an index file should hold and does not lead to",
    "unindexed": "keys of records between or behind the index files, which a broker does not find",
    # DLedger
    "dledger-entry": "an entry's header that does not fit its place, the last one or the index",
    "dledger-index": "a unit that does not fit its number or the one before it",
    # the rest
    "state": "a broker has the store open, or was killed",
    "checkpoint": "a time that no record of the log has reached, a missing or a damaged checkpoint",
    "config": "a file of `config/` that is no JSON; a note where it is a `.bak`",
    "topic-config": "a queue that `topics.json` does not account for",
    "stray-file": "what does not belong there; an error where a broker refuses to start",
    "unreadable": "what could not be looked at, and why",
    "expired": "a file that expired while it was verified",
}
"""The meaning of each kind."""
