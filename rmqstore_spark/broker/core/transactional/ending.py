"""Ends transactions as their producers ask: all that are given together, in few appends.

Upstream: EndTransactionProcessor. Unlike it, this ends each transaction once, and says so when it
is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rmqstore_spark.base.types import HalfId
from rmqstore_spark.broker.core.catalog import Catalog
from rmqstore_spark.broker.core.refusal import Reason, Refusal
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.engine.transactions.outcomes import COMMITTED, ENDED_BEFORE, ROLLED_BACK, Ended
from rmqstore_spark.errors import RefusedError

_NOT_FOUND: Final = "Find prepared transaction message failed"
_AGAIN: Final = "The transaction had ended before; nothing was stored."


@dataclass(slots=True)
class End:
    """A producer's word about a transaction.

    Attributes:
        group: the producer group.
        half: the half message.
        is_commit: whether to commit it; None: the producer does not know yet.
        asker: the request, for who answers it; it is not looked at here.
        remark: of the answer, once it has ended; "" for none.
    """

    group: str
    half: HalfId
    is_commit: bool | None
    asker: Any = None
    remark: str = ""


class Ending:
    """Ends transactions. Used by one thread.

    Args:
        store: the store.
        catalog: knows whether it is a slave.
    """

    def __init__(self, store: StoreWriter, catalog: Catalog) -> None:
        self._transactions = store.transactions
        self._catalog = catalog

    def require_master(self) -> None:
        """Refuse to end transactions on a slave.

        Raises:
            Refusal: this is one.
        """
        if self._catalog.is_slave:
            raise Refusal(
                Reason.SLAVE, "Message store is slave mode, so end transaction is forbidden."
            )

    def end_all(
        self,
        ends: Sequence[End],
        ended: Callable[[End], None],
        failed: Callable[[Sequence[End], Exception], None],
    ) -> None:
        """End transactions.

        Args:
            ends: which; each says whether to commit it.
            ended: is called with each one that has ended, now or before.
            failed: is called with those that have not, and why: a Refusal, or a bug.
        """
        left = ends
        while left:
            left = self._end_some(left, ended, failed)

    def _end_some(
        self,
        ends: Sequence[End],
        ended: Callable[[End], None],
        failed: Callable[[Sequence[End], Exception], None],
    ) -> list[End]:
        """End transactions, those of a group and outcome together; return what must come later.

        These ask for another outcome of a transaction that an earlier request has ended here.
        """
        together: dict[tuple[str, bool], list[End]] = {}
        outcomes: dict[tuple[str, HalfId], bool] = {}
        later = []
        for end in ends:
            is_commit = bool(end.is_commit)
            if outcomes.setdefault((end.group, end.half), is_commit) == is_commit:
                together.setdefault((end.group, is_commit), []).append(end)
            else:
                later.append(end)
        for (group, is_commit), part in together.items():
            halves = [end.half for end in part]
            try:
                done = self._transactions.end(group, halves, is_commit=is_commit)
            except RefusedError as error:
                failed(part, Refusal(Reason.UNAVAILABLE, str(error.args[0])))
                continue
            except Exception as error:  # noqa: BLE001 - one must not fail those of other clients
                failed(part, error)
                continue
            for end, found in zip(part, done, strict=True):
                try:
                    end.remark = _remark(found)
                except Refusal as error:
                    failed([end], error)
                else:
                    ended(end)
        return later


def _remark(ended: Ended) -> str:
    if ended.status in (COMMITTED, ROLLED_BACK):
        return ended.remark
    if ended.status == ENDED_BEFORE:
        return _AGAIN
    raise Refusal(Reason.WRONG, f"{_NOT_FOUND}\n{ended.remark}")
