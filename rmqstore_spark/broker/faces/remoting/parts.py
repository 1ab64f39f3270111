"""What the rows of the table reach."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass

from rmqstore_spark.broker.core.administration.state import WaitingRequests
from rmqstore_spark.broker.core.core import Core
from rmqstore_spark.broker.faces.remoting.membership import Members
from rmqstore_spark.broker.faces.remoting.relaying import Relaying
from rmqstore_spark.broker.faces.remoting.telling import Telling


@dataclass
class Parts:
    """The parts of a broker with this face.

    Attributes:
        core: decides.
        membership: takes heartbeats.
        relaying: asks one client for another.
        telling: tells clients.
        sends, pulls: requests that wait.
    """

    core: Core
    membership: Members
    relaying: Relaying
    telling: Telling
    sends: Sized = ()
    pulls: Sized = ()

    @property
    def waiting(self) -> WaitingRequests:
        """How many requests wait to be handled."""
        return WaitingRequests(len(self.sends), len(self.pulls))
