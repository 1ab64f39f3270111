"""The positions in a stream's checkpoint: those that it resumes, and those that it keeps.

It resumes under the names that its stores have now. A store that is left out, a topic or queue that
the options do not choose any more, and one that is gone: each keeps its position in the checkpoint.
When it is read again, the record before the position tells whether it is still the same.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from rmqstore_spark.datasource.failures import some
from rmqstore_spark.datasource.offsets import (
    Offsets,
    QueueKey,
    StoresOf,
    decode_offsets,
    decode_stores,
    encode_offsets,
)
from rmqstore_spark.datasource.options.table import PositionOptions, QueueOptions
from rmqstore_spark.datasource.resolve import lose
from rmqstore_spark.datasource.sources.source import ChosenQueue, Source
from rmqstore_spark.datasource.stream.identity import StorePlaces, find_stores, ids_of, renamed
from rmqstore_spark.errors import DataLossError, OptionError, ServiceError
from rmqstore_spark.reader.before import UNKNOWN

_log = logging.getLogger("rmqstore_spark")

_REMEMBERED: Final = 8
"""Only a restart, a rename and a new store bring new ones."""


class ResumedStores:
    """The stores of a stream, and those of its checkpoint.

    Args:
        may_lose: whether the stream continues without a store (`failOnDataLoss=false`).
        routed: whether name servers tell where the stores are.
    """

    def __init__(self, opened: Sequence[Source], *, may_lose: bool, routed: bool) -> None:
        self._opened = opened
        self._may_lose = may_lose
        self._routed = routed
        self._found: dict[Hashable, StorePlaces] = {}
        self._ids: Mapping[str, str] | None = None
        self._missing: dict[str, str] = {}
        self._told: frozenset[str] = frozenset()

    def moved(self) -> None:
        """Take note that another replica is read: it has an id of its own."""
        self._ids = None

    @property
    def _ids_now(self) -> Mapping[str, str]:
        if self._ids is None:
            self._ids = ids_of(self._opened)
        return self._ids

    def encoded(self, offsets: Offsets) -> dict[str, Any]:
        """Encode offsets of this stream for its checkpoint."""
        brokers = {key.broker for key in offsets}
        ids = {name: found for name, found in self._ids_now.items() if name in brokers}
        ids.update((name, found) for name, found in self._missing.items() if found)
        stores = StoresOf(ids, frozenset(self._missing))
        names = {name: name for name in brokers if name not in self._missing}
        self._remember(_key(offsets, stores), StorePlaces(names, stores.left_out))
        return encode_offsets(offsets, stores)

    def resumed(self, stored: Sequence[Mapping[str, Any]]) -> list[Offsets]:
        """Decode offsets of the checkpoint; they may be from before and after a store was renamed.

        Raises:
            RmqStoreError: they are damaged.
            OptionError: a store of the checkpoint is not there, but another one.
            DataLossError: one is not there, and `failOnDataLoss` is set.
            ServiceError: no name server knows a broker, and `failOnDataLoss` is set.
        """
        return [self._resumed(each) for each in stored]

    def _resumed(self, stored: Mapping[str, Any]) -> Offsets:
        offsets, stores = decode_offsets(stored), decode_stores(stored)
        key = _key(offsets, stores)
        found = self._found.get(key)
        if found is None:
            found = find_stores(offsets, stores, self._opened, self._ids_now)
            self._require(found, stores)
            self._remember(key, found)
        self._missing = {name: stores.ids.get(name, "") for name in sorted(found.missing)}
        return renamed(offsets, found.names)

    def _remember(self, key: Hashable, found: StorePlaces) -> None:
        if len(self._found) >= _REMEMBERED:
            self._found.clear()
        self._found[key] = found

    def _require(self, found: StorePlaces, stores: StoresOf) -> None:
        """Refuse to continue without a store, unless that is allowed or was allowed before."""
        missing = sorted(found.missing - stores.left_out)
        names = [of.broker_name for of in self._opened]
        new = [name for name in names if name not in found.names.values()]
        if self._routed:
            if missing and not self._may_lose:
                raise ServiceError(
                    f"No name server knows the broker {some(missing)} now, which the checkpoint "
                    "has offsets of. Start it; the stream then continues from its checkpoint. "
                    "failOnDataLoss=false leaves out what it holds, and keeps its position."
                )
        elif missing and new:
            raise self._other_stores(missing, new, names, stores)
        elif missing and not self._may_lose:
            raise DataLossError(
                f"The checkpoint holds offsets of {some(missing)}, which this query does not read "
                "any more. Name its store again; the stream then continues from its checkpoint. "
                "failOnDataLoss=false leaves out what it holds, and keeps its position."
            )
        if found.missing and found.missing != self._told:
            self._told = found.missing
            _log.warning(
                "The stream continues without %s, which its checkpoint has positions of. They are "
                "kept: when the query reads it again, it continues there.",
                some(sorted(found.missing)),
            )

    def _other_stores(
        self,
        missing: Sequence[str],
        new: Sequence[str],
        names: Sequence[str],
        stores: StoresOf,
    ) -> OptionError:
        where = some(f"{of.broker_name} ({of.path})" for of in self._opened)
        right = "the names in the checkpoint"
        if len(missing) == len(new) == 1:
            right += f": {','.join(missing[0] if name in new else name for name in names)}"
        wanted = {stores.ids[name] for name in missing if name in stores.ids}
        alike = [name for name in new if self._ids_now.get(name) in wanted]
        doubt = (
            f"nothing shows that {some(new)} is the same store: neither its id nor its messages."
        )
        if alike:
            doubt = (
                f"{some(alike)} has the id of such a store, but not the messages that the stream "
                "had read: files of its log are missing (`rmqstore verify` shows it), or it is a "
                "copy that has diverged."
            )
        return OptionError(
            f"The checkpoint holds offsets of {some(missing)}, but the query reads {where}, and "
            f"{doubt} If it is the same store, set option brokerNames to {right}. If it is another "
            "one, start the stream with another checkpointLocation; or once without it and with "
            f"failOnDataLoss=false, which leaves {some(missing)} out from then on."
        )


def _key(offsets: Offsets, stores: StoresOf) -> Hashable:
    """Return what decides which stores are found."""
    brokers = frozenset(key.broker for key in offsets)
    return brokers, tuple(sorted(stores.ids.items())), stores.left_out


class KeptPositions:
    """The positions of queues that the stream does not read."""

    def __init__(self, chosen: QueueOptions, stores: AbstractSet[str]) -> None:
        self._chosen = chosen
        self._stores = stores
        self._gone: set[QueueKey] = set()
        self._told: set[QueueKey] = set()

    def reads(self, key: QueueKey) -> bool:
        """Return whether the stream reads a queue, as far as it is known."""
        if key.broker not in self._stores or key in self._gone:
            return False
        return self._chosen.wants_queue(key.topic, key.queue_id)

    def of(
        self,
        marks: Offsets,
        queues: Mapping[QueueKey, ChosenQueue],
        silent: AbstractSet[str],
        positions: PositionOptions,
    ) -> Offsets:
        """Return the positions to keep.

        Args:
            marks: the positions of the stream.
            queues: the queues that it reads.
            silent: the brokers that do not answer, of whose queues nothing is known.
            positions: say whether a loss is allowed.

        Raises:
            DataLossError: a queue does not exist any more, and `failOnDataLoss` is set.
        """
        kept: Offsets = {}
        unchosen: list[QueueKey] = []
        self._gone -= queues.keys()
        self._told -= queues.keys()
        for key, mark in marks.items():
            if key in queues:
                continue
            if key.broker not in self._stores or key.broker in silent:
                kept[key] = mark
            elif not self._chosen.wants_queue(key.topic, key.queue_id):
                kept[key] = mark
                unchosen.append(key)
            else:
                self._lose(key, mark.next, positions)
                if mark.last_physical != UNKNOWN or not mark.next:
                    kept[key] = mark  # else nothing would show that it was created again
        self._tell(unchosen, queues)
        return kept

    def _lose(self, key: QueueKey, reached: int, positions: PositionOptions) -> None:
        if key in self._gone:
            return
        lose(
            positions,
            f"Queue {key} no longer exists, or may not be read any more (readQueueNums, perm); the "
            f"stream had read it up to {reached}.",
            "Its position is kept: if it is there again, the stream continues there.",
        )
        self._gone.add(key)

    def _tell(self, keys: list[QueueKey], queues: Mapping[QueueKey, ChosenQueue]) -> None:
        """Warn once of what is not chosen any more."""
        new = [key for key in keys if key not in self._told]
        if not new:
            return
        self._told.update(new)
        topics = {key.topic for key in queues}
        names = dict.fromkeys(
            f"queue {key}" if key.topic in topics else f"topic {key.topic} of {key.broker}"
            for key in sorted(new)
        )
        _log.warning(
            "Not chosen any more: %s. The stream does not read it, and keeps its position in the "
            "checkpoint: if the options (%s) choose it again, the stream continues there.",
            some(names),
            self._chosen.chosen_by,
        )
