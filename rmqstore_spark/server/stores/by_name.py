"""Finds the store that a call is about, by the name in its endpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rmqstore_spark.errors import RefusedError
from rmqstore_spark.server.stores.served import ServedStore
from rmqstore_spark.wire.failures import DENIED


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
