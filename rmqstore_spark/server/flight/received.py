"""A message of a client, and the room in the budget that it takes."""

from __future__ import annotations

from typing import Final

import numpy as np

from rmqstore_spark.layout.spans import U1
from rmqstore_spark.server.budget import Budget

__all__ = ["ReceivedMessage"]

_NOTHING: Final = np.empty(0, np.uint8)


class ReceivedMessage:
    """A message of a client.

    Attributes:
        data: uint8[bytes], which the handler may write to.
        charge: bytes of the budget that it takes.
    """

    def __init__(self, data: U1, budget: Budget, charge: int) -> None:
        self.data = data
        self._budget = budget
        self.charge = charge

    @property
    def view(self) -> memoryview:
        """The same bytes, read-only."""
        return memoryview(self.data).toreadonly()  # type: ignore[arg-type]

    def release(self) -> None:
        """Give back the message's room, and drop its bytes."""
        self.data = _NOTHING
        charge, self.charge = self.charge, 0
        if charge:
            self._budget.give_back(charge)
