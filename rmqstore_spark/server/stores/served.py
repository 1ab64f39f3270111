"""What a process serves: a store, as the handlers of calls see it, and all stores together."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rmqstore_spark.broker.acl.accounts import Right
from rmqstore_spark.broker.protection import Protection
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.remoting.listener import OtherProtocol
from rmqstore_spark.server.callers import Caller, Needs
from rmqstore_spark.server.view import StoreView
from rmqstore_spark.wire.endpoint import Endpoint
from rmqstore_spark.wire.messages import OffsetsReply
from rmqstore_spark.wire.protocol import DENIED
from rmqstore_spark.wire.reading import OpenReply, OpenRequest, TopicSettings

if TYPE_CHECKING:
    from rmqstore_spark.broker.core.clients import Group
    from rmqstore_spark.engine.store import StoreWriter
    from rmqstore_spark.ha.replication import Replication
    from rmqstore_spark.reader.store import Store
    from rmqstore_spark.server.put_turns import PutTurns

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
    def put_turns(self) -> PutTurns | None:
        """Stores single messages of many clients together; None if each is stored by its thread."""
        return None

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
    def open(self, request: OpenRequest) -> OpenReply:
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


class StoresByName:
    """The stores of a process.

    Args:
        stores: at least one, with different names.
    """

    def __init__(self, stores: Sequence[ServedStore]) -> None:
        self._stores = {store.name: store for store in stores}

    def __iter__(self) -> Iterator[ServedStore]:
        return iter(self._stores.values())

    def find(self, name: str | None) -> ServedStore:
        """Return the store of a name; the only one if there is no name.

        Raises:
            RefusedError: no store has that name, or there are several and no name was given.
        """
        if name is None and len(self._stores) == 1:
            return next(iter(self))
        found = None if name is None else self._stores.get(name)
        if found is not None:
            return found
        names = ", ".join(f"#{known}" for known in self._stores)
        if name is None:
            text = f"The process serves several stores. Add one of these to the endpoint: {names}."
        else:
            text = f"The process serves no store #{name[:127]}. It serves: {names}."
        raise RefusedError(text, DENIED)


@dataclass(frozen=True, repr=False)
class ServedPort:
    """Where clients come.

    Attributes:
        bound: the socket of the port; None without one.
        protection: accounts and TLS.
        endpoints: where Spark's clients come; empty if they are not served.
        other: their protocol, which is handed over by a broker that listens on the port; None if
            they are not served.
    """

    bound: socket.socket | None
    protection: Protection
    endpoints: Sequence[Endpoint] = ()
    other: OtherProtocol | None = None


class StoreService(ABC):
    """The stores that a process serves, and what belongs to them.

    Attributes:
        stores: the stores.
        look_seconds: how often `continues` is asked; None for never.
    """

    def __init__(self, stores: Sequence[ServedStore]) -> None:
        self.stores = stores
        self.look_seconds: float | None = None

    @property
    def slaves(self) -> str | None:
        """Where slaves connect, as host:port; None if none are taken."""
        return None

    @property
    def broker(self) -> str | None:
        """Where RocketMQ's clients connect, as host:port; None if none are served."""
        return None

    @property
    def broker_held(self) -> int:
        """Bytes of requests and answers of RocketMQ's clients in memory."""
        return 0

    def consumer_groups(self) -> Mapping[str, Group]:
        """Return RocketMQ's consumer groups of which a member is connected, by name."""
        return {}

    @abstractmethod
    def start(self, port: ServedPort) -> None:
        """Start what works besides the calls of Spark's clients, once those can come."""

    @abstractmethod
    def stats(self) -> Mapping[str, Any]:
        """Return the figures of all stores, ready for JSON."""

    def continues(self) -> bool:
        """Return whether the process should continue."""
        return True

    @abstractmethod
    def close(self) -> None:
        """Close the stores, when no call can reach them."""
