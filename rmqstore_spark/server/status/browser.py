"""Reads messages for the browser of the pages: a few of a queue, those with a key, or one.

A page lists 20 messages with the begin of their bodies, and shows one message whole up to 64 KiB.
Compressed bodies are unpacked for the latter alone. A search ends after ten seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from rmqstore_spark.errors import OptionError
from rmqstore_spark.layout.constants import COMPRESSED_FLAG
from rmqstore_spark.layout.record.columns import TIMESTAMP
from rmqstore_spark.reader.lookup import query_by_key, query_by_msg_id
from rmqstore_spark.reader.options import ReadOptions
from rmqstore_spark.server.status.asking import Unanswerable

if TYPE_CHECKING:
    from rmqstore_spark.reader.store import Store

LISTED: Final = 20
SNIPPET: Final = 200
SHOWN: Final = 64 << 10
"""Bytes of a body that are shown."""

_AT_ONCE: Final = 1 << 20
_SEARCH_SECONDS: Final = 10.0
_MOST_BYTES: Final = 32 << 20
_COLUMNS: Final = (
    "topic", "queueId", "queueOffset", "msgId", "uniqKey", "tags", "keys", "storeTimestamp",
    "sysFlag", "body",
)  # fmt: skip
_ALL: Final = (
    *_COLUMNS, "physicalOffset", "properties", "bornTimestamp", "bornHost", "storeHost",
    "reconsumeTimes", "storeSize", "preparedTransactionOffset", "bodyCRC", "flag",
)  # fmt: skip


@dataclass(frozen=True)
class ListedMessage:
    """A message of a list.

    Attributes:
        topic, queue_id, queue_offset: which.
        msg_id: its offset message id.
        stored: when, in microseconds since the epoch.
        tags, keys: of the message.
        size: bytes of its body as it is stored.
        snippet: the begin of its body; None if that is compressed.
    """

    topic: str
    queue_id: int
    queue_offset: int
    msg_id: str
    stored: int
    tags: str
    keys: tuple[str, ...]
    size: int
    snippet: bytes | None


@dataclass(frozen=True)
class WholeMessage:
    """A message as it is shown alone.

    Attributes:
        listed: what a list shows of it; its snippet is nothing.
        facts: further fields, by their column's name; times as in the list.
        properties: by name.
        body: the first `SHOWN` bytes, unpacked.
        body_size: how many bytes it has.
    """

    listed: ListedMessage
    facts: Mapping[str, Any]
    properties: Mapping[str, str]
    body: bytes
    body_size: int


def of_queue(store: Store, topic: str, queue_id: int, start: int, end: int) -> list[ListedMessage]:
    """Return messages of a queue, from `start` to `end - 1`; damaged ones are left out.

    Raises:
        RmqStoreError: the queue or the offsets do not exist, or the store cannot be read.
    """
    options = _listing(fail_on_data_loss=False)
    return _listed(store.read(topic, queue_id, start, min(end, start + LISTED), options))


def of_key(store: Store, topic: str, key: str) -> list[ListedMessage]:
    """Return the newest messages of a topic with a key or UNIQ_KEY.

    Raises:
        Unanswerable: the search takes too long.
        RmqStoreError: the store cannot be read.
    """
    found = query_by_key(
        store, topic, key, max_num=LISTED, max_bytes=_MOST_BYTES, options=_listing(),
        between=_deadline(),
    )  # fmt: skip
    return _listed(found.to_batches())


def of_id(store: Store, msg_id: str) -> ListedMessage | None:
    """Return the message with an offset message id; None if there is none.

    Raises:
        RmqStoreError: the store cannot be read.
    """
    try:
        found = query_by_msg_id(store, msg_id, _listing())
    except OptionError:  # the text is not one
        return None
    return next(iter(_listed(found.to_batches())), None)


def whole(store: Store, topic: str, queue_id: int, offset: int) -> WholeMessage | None:
    """Return a message of a queue; None if it is damaged or has expired.

    Raises:
        RmqStoreError: the queue or the offset does not exist, or the store cannot be read.
    """
    options = ReadOptions(
        columns=_ALL, mode="DROPMALFORMED", fail_on_data_loss=False, batch_bytes=_AT_ONCE
    )
    for batch in store.read(topic, queue_id, offset, offset + 1, options):
        for row, body in _rows(batch):
            facts = {name: row[name] for name in _ALL if name not in _COLUMNS}
            properties = dict(facts.pop("properties") or ())
            listed = _message(row, body, snippet=0)
            shown = body.slice(0, min(len(body), SHOWN)).to_pybytes()
            return WholeMessage(listed, facts, properties, shown, len(body))
    return None


def _listing(*, fail_on_data_loss: bool = True) -> ReadOptions:
    return ReadOptions(
        columns=_COLUMNS, decompress=False, mode="DROPMALFORMED", batch_bytes=_AT_ONCE,
        fail_on_data_loss=fail_on_data_loss,
    )  # fmt: skip


def _deadline() -> Callable[[], None]:
    """Return a function that ends a search which takes too long."""
    end = time.monotonic() + _SEARCH_SECONDS

    def look() -> None:
        if time.monotonic() > end:
            raise Unanswerable(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"The search took more than {_SEARCH_SECONDS:g} s and was aborted. Search with "
                "`rmqstore query` on the machine that has the store.",
            )

    return look


def _listed(batches: Iterable[pa.RecordBatch]) -> list[ListedMessage]:
    return [_message(row, body, SNIPPET) for batch in batches for row, body in _rows(batch)]


def _rows(batch: pa.RecordBatch) -> Iterable[tuple[dict[str, Any], pa.Buffer]]:
    """Return the messages of a batch and their bodies, whose bytes stay in the batch."""
    # As numbers: not every time in a record is one that Python has.
    columns = {
        field.name: batch[field.name].cast(pa.int64())
        if field.type == TIMESTAMP
        else batch[field.name]
        for field in batch.schema
        if field.name != "body"
    }
    bodies = (value.as_buffer() for value in batch["body"])
    return zip(pa.RecordBatch.from_pydict(columns).to_pylist(), bodies, strict=True)


def _message(row: Mapping[str, Any], body: pa.Buffer, snippet: int) -> ListedMessage:
    is_packed = bool(row["sysFlag"] & COMPRESSED_FLAG)
    begin = body.slice(0, min(len(body), snippet)).to_pybytes()
    return ListedMessage(
        row["topic"], row["queueId"], row["queueOffset"], row["msgId"], row["storeTimestamp"],
        row["tags"] or "", tuple(row["keys"] or ()), len(body), None if is_packed else begin,
    )  # fmt: skip
