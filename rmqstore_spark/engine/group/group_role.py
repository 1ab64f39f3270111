"""The role of a member of a DLedger group: master while it leads, and slave otherwise.

The group decides, so nothing of it is kept in a file of the store, and no command changes it. A
follower registers under a number of its own, as RocketMQ's members do: that of its id, and one
(`DLedgerRoleChangeHandler`, `BrokerController.startProcessorByHa`).
"""

from __future__ import annotations

import re
import threading
from typing import Final

from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.group.store_group import MemberBrokers
from rmqstore_spark.engine.role import SLAVE, SYNC_MASTER, KeptRole, Promotion, Role
from rmqstore_spark.errors import OptionError

_ID: Final = re.compile(r"[a-zA-Z]([0-9]{1,9})")


class GroupRole(Role):
    """The role of a member. See `Role`; it begins as a slave.

    Args:
        store: the store directory.
        config: has the member's id.
        brokers: tell where the others are.

    Attributes:
        leader: the id of the member that leads; "" as long as that is not known.
        term: in which it leads.
        copying: is held while what another leader has told is taken over, and while this store
            begins to lead, from when on nothing of it is taken any more.

    Raises:
        OptionError: the id is not a letter and a number.
    """

    is_elected = True

    def __init__(self, store: str, config: StoreConfig, brokers: MemberBrokers) -> None:
        super().__init__(store, config)
        number = _ID.fullmatch(config.d_leger_self_id)
        if number is None:
            raise OptionError(
                f"dLegerSelfId is {config.d_leger_self_id!r}: a store that serves clients needs a "
                "letter and a number, such as n0. Its brokerId as a follower is made of it."
            )
        self._followers_id = int(number[1]) + 1
        self._kept = KeptRole()
        self._is_settled = True
        self._name = SLAVE
        self._brokers = brokers
        self.leader = ""
        self.term = 0
        self.copying = threading.Lock()

    @property
    def master(self) -> str:
        """Where to write, for people."""
        if not self.leader:
            return "Its DLedger group has no leader now: try again."
        return (
            f"The leader of its DLedger group is {self._brokers.place(self.leader)}: write there."
        )

    @property
    def serves_slaves(self) -> bool:
        """Whether slaves may connect: members get the log from each other."""
        return False

    @property
    def waits_for_slaves(self) -> bool:
        """Whether a put is answered when a slave has it: here, when a quorum has it."""
        return False

    @property
    def knows_what_waits(self) -> bool:
        """Whether it is known here what may wait: the log tells it, if the leader does not."""
        return True

    @property
    def knows_what_ended(self) -> bool:
        """Whether each transaction that has ended is known here: not if a foreign broker leads."""
        return not (self.follows and self._brokers.is_silent(self.leader))

    @property
    def broker_id(self) -> int:
        """The number as which a broker registers."""
        return self._followers_id if self.follows else 0

    @property
    def followed(self) -> tuple[str, int] | None:
        """Whom the store follows, as leader and term; None if it follows nobody."""
        return (self.leader, self.term) if self.follows and self.leader else None

    def lead(self) -> None:
        """Be the master from now on. Needs the append lock. Tells nobody yet."""
        self._name = SYNC_MASTER

    def follow(self) -> None:
        """Be a slave from now on. Needs the append lock. Tells nobody yet."""
        self._name = SLAVE

    def learn(self, promotions: tuple[Promotion, ...]) -> None:
        """Do nothing: terms tell who has written what."""
