"""The transactions that wait for their end, and the rule by which they are checked or given up.

(Upstream: TransactionalMessageServiceImpl.check, needDiscard, needSkip.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.reader.transactions import HalfPlace, Identity, Transaction

_MOST: Final = 1_000_000
"""The most half messages that may wait; each takes about a kilobyte of memory."""
_MOST_OF_ONE: Final = 256
"""The most half messages of a transaction: each further one costs as much as all before it."""
_HOUR_MS: Final = 3_600_000


class WaitingTransactions:
    """The transactions that wait, by their half messages. Used under a lock.

    Half messages with the same producer group, topic and UNIQ_KEY belong to one transaction.

    Args:
        transactions: what waits at first, by the offset of the newest half message.
    """

    def __init__(self, transactions: Iterable[Transaction]) -> None:
        self._by_offset: dict[int, Transaction] = {}
        self._by_identity: dict[Identity, Transaction] = {}
        self._asked: dict[str, dict[int, Transaction]] = {}
        found = list(transactions)
        ascending = sorted((place.queue_offset, one) for one in found for place in one.places)
        self._by_offset.update(ascending)
        self._by_identity.update((one.identity, one) for one in found if one.identity)

    def __len__(self) -> int:
        return len(self._by_offset)

    def __iter__(self) -> Iterator[Transaction]:
        """Iterate over the transactions, by the offset of the newest half message."""
        for offset, one in self._by_offset.items():
            if one.place.queue_offset == offset:
                yield one

    def check_room(self, identities: Sequence[Identity | None]) -> None:
        """Check that more half messages may wait.

        Args:
            identities: of their transactions, n.

        Raises:
            RefusedError: too many wait.
        """
        if len(self) + len(identities) > _MOST:
            raise RefusedError(
                f"{_MOST} half messages wait for the end of their transactions. Try again when "
                "some are ended.",
                PutStatus.SERVICE_NOT_AVAILABLE,
            )
        for identity, count in Counter(filter(None, identities)).items():
            older = self._by_identity.get(identity)
            if count + (0 if older is None else len(older.places)) > _MOST_OF_ONE:
                group, topic, key = identity
                raise RefusedError(
                    f"{_MOST_OF_ONE} half messages of one transaction wait: of the producer group "
                    f"{group}, with the topic {topic} and the UNIQ_KEY {key[:255]!r}. Give each "
                    "message a UNIQ_KEY of its own.",
                    PutStatus.MESSAGE_ILLEGAL,
                )

    def add(self, halves: Iterable[Transaction]) -> None:
        """Add half messages, which have later offsets than all others."""
        for half in halves:
            older = self.like(half)
            self._set(half if older is None else older.joined(half))

    def find(self, queue_offset: int) -> Transaction | None:
        """Return the transaction that a half message belongs to; None if it does not wait."""
        return self._by_offset.get(queue_offset)

    def like(self, half: Transaction) -> Transaction | None:
        """Return the transaction that waits with other half messages of the same; None if none."""
        return self._by_identity.get(half.identity) if half.identity else None

    def remove(self, ended: Iterable[Transaction]) -> None:
        """Remove transactions that are ended."""
        for one in ended:
            for place in one.places:
                self._by_offset.pop(place.queue_offset, None)
            self._forget_asked(one.group, (place.queue_offset for place in one.places))
            if one.identity:
                self._by_identity.pop(one.identity, None)

    def ask(self, due: Iterable[Transaction]) -> None:
        """Count a check of transactions, and note that their producers are to be asked."""
        for one in due:
            checked = replace(one, checks=one.checks + 1)
            self._set(checked)
            self._asked.setdefault(checked.group, {})[checked.place.queue_offset] = checked

    def take_asked(self, group: str, most: int, most_bytes: int) -> Sequence[Transaction]:
        """Return transactions of a group that are to be asked for; each check is returned once."""
        found: dict[int, Transaction] = {}
        for offset, one in self._asked.get(group, {}).items():
            if len(found) == most:
                break
            most_bytes -= one.place.size
            if most_bytes < 0 and found:
                break
            found[offset] = one
        self._forget_asked(group, found)
        return list(found.values())

    @property
    def asked_groups(self) -> frozenset[str]:
        """The producer groups that are to be asked."""
        return frozenset(self._asked)

    @property
    def oldest(self) -> HalfPlace | None:
        """The oldest half message that waits."""
        offset = next(iter(self._by_offset), None)
        if offset is None:
            return None
        return next(
            place for place in self._by_offset[offset].places if place.queue_offset == offset
        )

    def checks(self) -> dict[int, int]:
        """Return how often transactions were checked, by their newest half message."""
        return {one.place.queue_offset: one.checks for one in self if one.checks}

    def _forget_asked(self, group: str, offsets: Iterable[int]) -> None:
        asked = self._asked.get(group)
        if asked is None:
            return
        for offset in offsets:
            asked.pop(offset, None)
        if not asked:
            del self._asked[group]

    def _set(self, one: Transaction) -> None:
        for place in one.places:
            self._by_offset[place.queue_offset] = one
        if one.identity:
            self._by_identity[one.identity] = one


def sort_waiting(
    waiting: Iterable[Transaction], config: StoreConfig, now: int
) -> tuple[list[Transaction], list[Transaction]]:
    """Return the transactions whose producers are asked at a time, and those to give up.

    Args:
        waiting: what waits.
        config: has `transactionTimeOut`, `transactionCheckMax` and `fileReservedTime`.
        now: milliseconds since the epoch.
    """
    asked, hopeless = [], []
    kept = config.file_reserved_time * _HOUR_MS
    for one in waiting:
        age = now - one.stored
        immunity = config.transaction_time_out if one.immunity < 0 else one.immunity
        if kept and age > kept:
            hopeless.append(one)  # whatever its immunity: it keeps the log from expiring
        elif 0 <= age < immunity:
            continue
        elif one.checks >= config.transaction_check_max:
            hopeless.append(one)
        else:
            asked.append(one)
    return asked, hopeless
