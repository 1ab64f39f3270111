"""One store that a process serves, as the handlers of calls see it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from rmqstore_spark.broker.acl.accounts import Right
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.server.callers import Caller, Needs
from rmqstore_spark.server.view import StoreView
from rmqstore_spark.wire.failures import DENIED
from rmqstore_spark.wire.messages import OffsetsReply, OpenReply, TopicSettings

if TYPE_CHECKING:
    from rmqstore_spark.engine.store import StoreWriter
    from rmqstore_spark.ha.replication import Replication
    from rmqstore_spark.reader.store import Store

_PERM_READ: Final = 4
_PERM_WRITE: Final = 2
_USES: Final = ((Right.SUB, _PERM_READ, "read"), (Right.PUB, _PERM_WRITE, "written"))


class ServedStore(ABC):
    """One store that a process serves.

    Attributes:
        name: the name by which clients ask for it, and its broker name.
        path: the store directory.
        view: its files.
    """

    def __init__(self, name: str, path: str, view: StoreView) -> None:
        self.name = name
        self.path = path
        self.view = view

    @property
    def permission(self) -> int:
        """What anyone may do with the store: 4 (read) and 2 (write), as in `brokerPermission`."""
        return _PERM_READ | _PERM_WRITE

    def require(self, caller: Caller, needs: Needs) -> None:
        """Refuse what a client may not do with the store.

        Raises:
            RefusedError: it may not.
        """
        caller.require(needs)
        for right, bit, what in _USES:
            if needs.uses is right and not self.permission & bit:
                raise RefusedError(
                    f"The store {self.name} cannot be {what} now: its brokerPermission is "
                    f"{self.permission}.",
                    DENIED,
                )

    @property
    @abstractmethod
    def writer(self) -> StoreWriter:
        """The store, open for writing.

        Raises:
            RefusedError: this process does not write the store.
        """

    @property
    @abstractmethod
    def replication(self) -> Replication:
        """Its part in replication.

        Raises:
            RefusedError: this process does not write the store, or has not begun to serve it.
        """

    @abstractmethod
    def open(self, topics: Sequence[str] | None) -> OpenReply:
        """Return what is needed to encode records; see `OpenRequest`.

        Raises:
            RefusedError: topics are to be written, and cannot be.
        """

    @abstractmethod
    def topics(self) -> dict[str, TopicSettings]:
        """Return the settings of all topics by name."""

    @abstractmethod
    def offsets(self, topics: Sequence[str] | None) -> OffsetsReply:
        """Return the ends of the log, and of the queues of some topics; None for all."""

    def reading(self, path: str) -> AbstractContextManager[None]:  # noqa: ARG002
        """Mark a file as being read; its path is relative to the store."""
        return nullcontext()

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Return figures, ready for JSON."""

    @abstractmethod
    def reader(self) -> Store:
        """Open the store for reading; the caller closes it."""
