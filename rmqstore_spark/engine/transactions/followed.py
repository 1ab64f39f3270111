"""The half messages that wait at a follower, which ends none itself.

Its leader's progress is copied (`tables.followed`), and says how far nothing waits. If nobody tells
it, as a leader of RocketMQ's, or if something waits there, the op messages in the log tell more.
"""

from __future__ import annotations

from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.layout.constants import TRANS_GROUP, TRANS_HALF_TOPIC
from rmqstore_spark.reader.store import Store
from rmqstore_spark.reader.transactions import find_transactions


def oldest_followed(store: OpenStore, until: int) -> int | None:
    """Return the physical offset of the oldest half message that may wait; None if none does.

    One that was committed without its op message, when a leader was killed, counts as waiting: the
    next leader completes it.

    Args:
        store: the open store.
        until: only those before this physical offset are asked for. All of them are in the queue.

    Raises:
        RmqStoreError: the store cannot be read.
    """
    queues, done = store.queues, store.consumer_offsets.get(TRANS_GROUP, TRANS_HALF_TOPIC, 0)
    at = max(queues.min_offset(TRANS_HALF_TOPIC, 0), done)
    if at >= queues.max_offset(TRANS_HALF_TOPIC, 0):
        return None
    oldest = int(queues.read(TRANS_HALF_TOPIC, 0, at, 1)["physicalOffset"][0])
    if oldest >= until:
        return oldest
    with Store.open(store.path) as reader:
        waiting = find_transactions(reader).waiting
    return min((place.physical_offset for one in waiting for place in one.places), default=None)
