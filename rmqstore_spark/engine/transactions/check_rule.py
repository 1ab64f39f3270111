"""Decides which transactions are checked, and which are given up.

(Upstream: TransactionalMessageServiceImpl.check, needDiscard, needSkip.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.reader.transactions import Transaction

_HOUR_MS: Final = 3_600_000


class CheckRule:
    """The rule of `transactionTimeOut`, `transactionCheckMax` and `fileReservedTime`.

    Args:
        config: the store's configuration.
    """

    def __init__(self, config: StoreConfig) -> None:
        self._time_out = config.transaction_time_out
        self._most_checks = config.transaction_check_max
        self._kept = config.file_reserved_time * _HOUR_MS

    def sort(
        self, waiting: Iterable[Transaction], now: int
    ) -> tuple[list[Transaction], list[Transaction]]:
        """Return the transactions whose producers are asked at a time, and those to give up.

        Args:
            waiting: what waits.
            now: milliseconds since the epoch.
        """
        asked, hopeless = [], []
        for one in waiting:
            if self._kept and now - one.stored > self._kept:
                hopeless.append(one)  # whatever its immunity: it keeps the log from expiring
            elif self._is_immune(one, now):
                continue
            elif one.checks >= self._most_checks:
                hopeless.append(one)
            else:
                asked.append(one)
        return asked, hopeless

    def _is_immune(self, one: Transaction, now: int) -> bool:
        immunity = self._time_out if one.immunity < 0 else one.immunity
        return 0 <= now - one.stored < immunity
