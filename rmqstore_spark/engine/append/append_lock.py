"""The lock of all that changes the log (upstream: CommitLog.putMessageLock)."""

from __future__ import annotations

import threading
import time

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine.dispatch.dispatcher import Dispatcher
from rmqstore_spark.engine.health import Health
from rmqstore_spark.errors import RefusedError


class AppendLock:
    """The lock of all that changes the log, as a context. An instance waits only so long.

    Args:
        patience: seconds that another thread may hold it (`osPageCacheBusyTimeOutMills`).
        dispatcher: takes what is appended; nothing is, while it has no room.
        health: says whether the store is closing, and fails if an invariant does not hold.

    Attributes:
        patience: that.
        held_since: since when a thread holds it, by `time.monotonic`; None: none does.
    """

    def __init__(self, patience: float, dispatcher: Dispatcher, health: Health) -> None:
        self.patience = patience
        self._dispatcher = dispatcher
        self._health = health
        self._lock = threading.Lock()
        self._turnstile = threading.Lock()  # held by the thread that has the lock next
        self.held_since: float | None = None

    def __enter__(self) -> None:
        # A thread that has just released the lock, and wants it again, waits for one that came
        # before: it finds the turnstile taken.
        if self._turnstile.acquire(blocking=False):
            has_lock = self._lock.acquire(blocking=False)
            self._turnstile.release()
            if has_lock:
                self._begin()
                return
        now, held = time.monotonic(), self.held_since
        if held is not None and now - held > self.patience:
            raise self.busy()
        if not self._turnstile.acquire(timeout=self.patience):
            raise self.busy()
        try:
            left = now + self.patience - time.monotonic()
            has_lock = self._lock.acquire(timeout=max(left, 0))
        finally:
            self._turnstile.release()
        if not has_lock:
            raise self.busy()
        self._begin()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if isinstance(error, AssertionError):
                wrong = self._health.fail_wrong_state(error)
                status = PutStatus.SERVICE_NOT_AVAILABLE
                raise RefusedError(str(wrong), status, is_open=True) from error
        finally:
            self.held_since = None
            self._lock.release()

    def acquire(self, *, checked: bool = True) -> None:
        """Enter it however long another thread holds it.

        Args:
            checked: refuse if the store is closing, or queues and index have no room. What ends a
                commit is not refused: its block is in the log's files already.
        """
        with self._turnstile:
            self._lock.acquire()
        self._begin(checked=checked)

    def finish(self) -> None:
        """Wait for the thread that holds it. After the store was closed, no other follows."""
        with self._lock:
            pass

    def require_room(self, *, is_open: bool = False) -> None:
        """Refuse what queues and index have no room for.

        Args:
            is_open: whether it may be in the log.
        """
        stalled = self._dispatcher.stalled
        if stalled is not None:
            raise RefusedError(
                f"There is no space for queues and index: {stalled} The store accepts messages "
                "again once there is.",
                PutStatus.SERVICE_NOT_AVAILABLE,
                is_open=is_open,
            )

    def _begin(self, *, checked: bool = True) -> None:
        try:
            assert self.held_since is None, "two threads hold the append lock"
            self.held_since = time.monotonic()
            if not checked:
                return
            if self._health.is_closed:
                text = "The store is closing. Try again when it is open."
                raise RefusedError(text, PutStatus.SERVICE_NOT_AVAILABLE)
            if self._dispatcher.stalled is not None:
                self.require_room()
        except BaseException as error:
            self.__exit__(None, error, None)
            raise

    def busy(self) -> RefusedError:
        """Return the error that tells a client to try again."""
        return RefusedError(
            "The log has been busy for longer than osPageCacheBusyTimeOutMills "
            f"({self.patience * 1000:.0f} ms). Try again.",
            PutStatus.OS_PAGECACHE_BUSY,
        )


class Patiently:
    """An append lock for which a thread waits as long as it takes; see `AppendLock.acquire`."""

    def __init__(self, lock: AppendLock, *, checked: bool = True) -> None:
        self._lock = lock
        self._checked = checked

    def __enter__(self) -> None:
        self._lock.acquire(checked=self._checked)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._lock.__exit__(kind, error, trace)
