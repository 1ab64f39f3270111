"""The thread that checks what has waited for too long, and writes the progress.

(Upstream: TransactionalMessageCheckService.)
"""

from __future__ import annotations

import logging
import time
from typing import Final

from rmqstore_spark.engine.admission import Admission
from rmqstore_spark.engine.health import Periodic
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.engine.transactions.transactions import Transactions
from rmqstore_spark.errors import RefusedError, RmqStoreError

_log = logging.getLogger(__name__)

_LOOK_MS: Final = 1000
_SAVE_S: Final = 5.0
_PAUSE_S: Final = 10.0


class Checks:
    """Checks transactions every `transactionCheckInterval`, as long as the store's role says so.

    Args:
        transactions: the transactions.
        admission: knows whether the store accepts messages.
        store: the open store.
    """

    def __init__(self, transactions: Transactions, admission: Admission, store: OpenStore) -> None:
        self._transactions = transactions
        self._admission = admission
        self._role = store.role
        self._health = admission.health
        self._interval_ms = store.config.transaction_check_interval
        self._interval = self._interval_ms / 1000
        self._has_begun = False
        self._checked = self._saved = self._resume = time.monotonic()
        self._thread: Periodic | None = None
        store.role.watch(self)
        self.role_changed()

    def role_changed(self) -> None:
        """Begin to check, or end it: what waits is another store's work then."""
        if self._role.checks:
            self._checked = self._saved = self._resume = time.monotonic()
            look = min(_LOOK_MS, self._interval_ms)
            self._thread = Periodic("rmqstore-transactions", look, self._run, self._health)
        elif self._thread is not None:
            self._thread.close()
            self._thread = None
            self._has_begun = False
            try:
                self._transactions.save()
            except RmqStoreError as error:
                _log.warning("The progress of transactions is in the log only: %s", error)
            finally:
                # Not when it is the master again: it has accepted half messages by then.
                self._transactions.forget()

    def stop(self) -> None:
        """Stop the thread; waits for a running round. The store is closed already for puts."""
        if self._thread is not None:
            self._thread.close()
        self._transactions.close()

    def _run(self) -> None:
        """Do what is due. Errors that may pass are logged; the next round tries again."""
        now = time.monotonic()
        is_due = now - self._checked >= self._interval
        is_idle = self._has_begun and not is_due and now - self._saved < _SAVE_S
        if is_idle or now < self._resume or not self._transactions.has_halves:
            return
        try:
            if not self._has_begun:
                self._transactions.begin()
                self._has_begun = True
            if is_due:
                self._checked = now
                self._admission.require_master()
                self._transactions.check()
                self._checked = time.monotonic()
            self._transactions.save()
            self._saved = time.monotonic()
        except RefusedError as error:
            _log.info("Transactions wait: %s", error)
            self._resume = now + _PAUSE_S
        except (RmqStoreError, OSError) as error:
            _log.error(
                "Transactions cannot be checked, and wait: %s It is tried again in %.0f s.",
                error, _PAUSE_S,
            )  # fmt: skip
            self._resume = now + _PAUSE_S
