"""What a store may do now, by its role. Everything that depends on the role asks here.

    <store>/rmqstore/role.json     the role that a command gave, and the promotions of the log

A role changes while the process runs (`role_changes`): a slave becomes the master, and back. It
comes from the configuration (`brokerRole`), unless a command gave the store another one. That is in
the file, and counts until the store is served with a configuration that says the same: a process
that is started again with the configuration of before must not fall back. From then on, the
configuration counts again.

The file goes with the log: if that is set aside, so is the file. It is replaced as a whole, so a
crash leaves the old or the new content, and a file that cannot be read has another cause: the store
is not opened then. Otherwise a master would follow again, or a slave accept messages.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple, Protocol

from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.errors import CorruptStoreError, StoreWriteError
from rmqstore_spark.files.durable import make_folder, replace_file
from rmqstore_spark.files.names import OWN_FOLDER, ROLE_NAME

_log = logging.getLogger(__name__)

_MOST_BYTES: Final = 1 << 20
_MOST_PROMOTIONS: Final = 10_000
_MOST_TOLD: Final = 1000
"""Promotions that a master may tell its slaves. The slaves' files have room for later ones."""
_MOST_LONG: Final = (1 << 63) - 1
_ID_LENGTH: Final = 32
ASYNC_MASTER: Final = "ASYNC_MASTER"
SYNC_MASTER: Final = "SYNC_MASTER"
SLAVE: Final = "SLAVE"


class Promotion(NamedTuple):
    """A promotion: from a place in the log on, another process was the master.

    Attributes:
        begin: physical offset of the first byte that the new master wrote.
        id: 32 hex digits, drawn at the promotion.
    """

    begin: int
    id: str


@dataclass(frozen=True)
class KeptRole:
    """The content of the file.

    Attributes:
        role: the role that the last command gave: a value of `brokerRole`; "" if none did.
        decides: whether that role counts, and not that of the configuration. A command sets it, and
            a start with a configuration that says the same takes it back.
        master: whom a slave follows by that command, as a value of `haMasterAddress`.
        master_broker: the same for `haMasterRemotingAddress`.
        promotions: the promotions, the oldest first.
    """

    role: str = ""
    decides: bool = False
    master: str = ""
    master_broker: str = ""
    promotions: tuple[Promotion, ...] = ()


def load_role(store: str) -> KeptRole:
    """Read the file of a store.

    Raises:
        CorruptStoreError: it cannot be read, or holds something else.
    """
    path = os.path.join(store, OWN_FOLDER, ROLE_NAME)
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read(_MOST_BYTES))
        role, decides = value["role"], value["decides"]
        master, broker = value["master"], value["master_broker"]
        promotions = promotions_of(value["promotions"], _MOST_PROMOTIONS)
        if not (all(isinstance(text, str) for text in (role, master, broker))):
            raise ValueError("a name is not a text")
        if role not in ("", "ASYNC_MASTER", "SYNC_MASTER", "SLAVE") or type(decides) is not bool:
            raise ValueError(f"there is no role {role!r:.100}")
        return KeptRole(role, decides and bool(role), master, broker, promotions)
    except FileNotFoundError:
        return KeptRole()
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptStoreError(
            f"it cannot be read ({error!r}), and says whether the store is a master or a slave",
            file=path,
            remedy="Remove the file to let brokerRole decide, if you know that it is right.",
        ) from error


def save_role(store: str, kept: KeptRole) -> None:
    """Write the file of a store; afterwards it is on disk.

    Raises:
        StoreWriteError: it could not be written. The old content counts.
    """
    folder = os.path.join(store, OWN_FOLDER)
    make_folder(folder)
    value = {**asdict(kept), "promotions": [list(promotion) for promotion in kept.promotions]}
    replace_file(os.path.join(folder, ROLE_NAME), json.dumps(value, indent=1).encode())


def promotions_of(value: Any, most: int = _MOST_TOLD) -> tuple[Promotion, ...]:
    """Return promotions from JSON.

    Raises:
        ValueError: the value is something else, or there are too many.
    """
    if not isinstance(value, Sequence) or len(value) > most:
        raise ValueError(f"{value!r:.100} are not promotions")
    return tuple(map(_promotion_of, value))


def _promotion_of(value: Any) -> Promotion:
    match value:
        case [int(begin), str(name)] if 0 <= begin <= _MOST_LONG and len(name) == _ID_LENGTH:
            return Promotion(begin, name)
    raise ValueError(f"{value!r:.100} is not a promotion")


class RoleWatcher(Protocol):
    """Is told when a store's role has changed."""

    def role_changed(self) -> None:
        """Do what the new role asks for. An error is logged, and changes nothing for others."""
        ...


class Role:
    """The role of a store. Thread-safe: the questions by any thread, a change by one at a time.

    Args:
        store: the store directory.
        config: the store's configuration.

    Attributes:
        is_certain: whether the next start finds the role of now: no change has failed half done.
        is_elected: whether a group decides, and not a command.

    Raises:
        CorruptStoreError: the file with the role cannot be read.
    """

    is_elected = False

    def __init__(self, store: str, config: StoreConfig) -> None:
        self._store = store
        self._config = config
        kept = load_role(store)
        self._is_settled = not (kept.decides and _agrees(kept, config))
        self._kept = kept if self._is_settled else replace(kept, decides=False)
        self._name = kept.role if self._kept.decides else config.broker_role
        self.is_certain = True
        self._watchers: tuple[RoleWatcher, ...] = ()
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return self._name

    # ---- what the store may do -------------------------------------------------------------------

    @property
    def accepts(self) -> bool:
        """Whether clients may store messages, and change topics."""
        return self._name != SLAVE

    @property
    def master(self) -> str:
        """Where to write, for people, if the store accepts no messages."""
        address = self._kept.master if self._kept.decides else self._config.ha_master_address
        if address:
            return f"It follows {address}: write to the process there."
        return "Write to its master."

    @property
    def follows(self) -> bool:
        """Whether the log is a copy of a master's, and gets nothing but what that one has."""
        return self._name == SLAVE

    @property
    def delivers(self) -> bool:
        """Whether delayed messages are delivered here when they are due."""
        return self._name != SLAVE

    @property
    def checks(self) -> bool:
        """Whether transactions that wait are checked here."""
        return self._name != SLAVE

    @property
    def knows_what_waits(self) -> bool:
        """Whether it is known here what may wait; a slave learns it from its master's broker."""
        return not self.follows or bool(self.applied(self._config).ha_master_remoting_address)

    @property
    def knows_what_ended(self) -> bool:
        """Whether each transaction that has ended is known here.

        Brokers of RocketMQ give up some without an op message, and only their progress tells it.
        A slave may be unable to get that.
        """
        return not self.follows

    @property
    def waits_for_slaves(self) -> bool:
        """Whether a put is answered when a slave has it.

        This also holds for one that came just before the store became a slave: if no other store
        has it, the new master does not have it either.
        """
        return self._name != ASYNC_MASTER

    @property
    def serves_slaves(self) -> bool:
        """Whether slaves may connect."""
        return self.accepts and (self.waits_for_slaves or self._config.ha_listen_port >= 0)

    @property
    def broker_id(self) -> int:
        """The number as which a broker registers: the configured one, if that fits the role."""
        if self.follows == (self._config.broker_role == SLAVE):
            return self._config.broker_id
        return max(self._config.broker_id, 1) if self.follows else 0

    @property
    def promotions(self) -> tuple[Promotion, ...]:
        """The promotions that the log has seen, the oldest first."""
        return self._kept.promotions

    # ---- where it comes from ---------------------------------------------------------------------

    def applied(self, config: StoreConfig) -> StoreConfig:
        """Return a configuration with the role, and the master that a command named."""
        kept = self._kept
        now = replace(config, broker_role=self._name, broker_id=self.broker_id)
        if not (kept.decides and self.follows):
            return now
        return replace(
            now, ha_master_address=kept.master, ha_master_remoting_address=kept.master_broker
        )

    def settle(self) -> None:
        """Warn if the configuration does not count; if it says the same as the file, let it count.

        For a process that serves the store: only its configuration is the store's. Others open the
        store with any, such as the default one, and must not take a command back.
        """
        kept, config = self._kept, self._config
        if not self._is_settled:
            with suppress(StoreWriteError):  # the next start does it
                self._keep(kept)
        if not kept.decides:
            return
        what = f"{self}, following {kept.master}" if self.follows else str(self)
        follows = f" and haMasterAddress={config.ha_master_address}" * bool(
            config.ha_master_address
        )
        _log.warning(
            "%s is %s, as `rmqstore %s` made it. The configuration has brokerRole=%s%s, which does "
            "not count until it says the same: change it.",
            self._store, what, "demote" if self.follows else "promote", config.broker_role, follows,
        )  # fmt: skip

    # ---- changes ---------------------------------------------------------------------------------

    def watch(self, watcher: RoleWatcher) -> None:
        """Tell a watcher of all changes from now on, after those that came before it."""
        with self._lock:
            self._watchers = (*self._watchers, watcher)

    def unwatch(self, watcher: RoleWatcher) -> None:
        """Tell a watcher of no more changes."""
        with self._lock:
            self._watchers = tuple(each for each in self._watchers if each is not watcher)

    def become_master(self, name: str, promotion: Promotion) -> None:
        """Be a master, from now on and after a restart. Needs the append lock. Tells nobody yet.

        Args:
            name: ASYNC_MASTER or SYNC_MASTER.
            promotion: where the log of this master begins.

        Raises:
            CorruptStoreError, StoreWriteError: that could not be written. The role is as before.
        """
        self._keep(KeptRole(name, decides=True, promotions=(*self.promotions, promotion)))
        self._name = name

    def become_slave(self, master: str, master_broker: str, log_end: int) -> None:
        """Be a slave, from now on and after a restart. Needs the append lock. Tells nobody yet.

        Args:
            master, master_broker: see `KeptRole`.
            log_end: where the log ends. A promotion after which nothing was written is forgotten:
                the former master can be followed again.

        Raises:
            CorruptStoreError, StoreWriteError: that could not be written. The role is as before.
        """
        promotions = tuple(promotion for promotion in self.promotions if promotion.begin < log_end)
        self._keep(KeptRole(SLAVE, True, master, master_broker, promotions))
        self._name = SLAVE

    def changed(self) -> None:
        """Tell the watchers, in the order in which they came."""
        for watcher in self._watchers:
            try:
                watcher.role_changed()
            except Exception:  # noqa: BLE001 - the others must know, and the role has changed
                _log.exception("%s is %s now, but not all of it:", self._store, self)

    def learn(self, promotions: tuple[Promotion, ...]) -> None:
        """Take over promotions that a slave's master knows, if they continue those known here.

        Raises:
            StoreWriteError: they could not be written.
        """
        known = self.promotions
        if self.follows and len(promotions) > len(known) and promotions[: len(known)] == known:
            self._keep(replace(self._kept, promotions=promotions))

    def _keep(self, kept: KeptRole) -> None:
        before = load_role(self._store)
        try:
            save_role(self._store, kept)
        except StoreWriteError:
            self._put_back(before)
            raise
        self._kept = kept
        self._is_settled = True

    def _put_back(self, before: KeptRole) -> None:
        """Undo a change of the file that may be on disk or not, as its folder was not flushed."""
        try:
            if load_role(self._store) != before:
                save_role(self._store, before)
        except (CorruptStoreError, StoreWriteError):
            self.is_certain = False


def _agrees(kept: KeptRole, config: StoreConfig) -> bool:
    """Return whether a configuration gives the role that a command gave, or a stricter one."""
    if kept.role == SLAVE or config.broker_role == SLAVE:
        return kept.role == config.broker_role and config.ha_master_address == kept.master
    return kept.role == ASYNC_MASTER or config.broker_role == SYNC_MASTER
