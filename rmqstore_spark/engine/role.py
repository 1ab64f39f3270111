"""What a store may do now, by its role. Everything that depends on the role asks here.

A role changes while the process runs (`role_changes`): a slave becomes the master, and back. It
comes from the configuration (`brokerRole`), unless a command gave the store another one. That is in
`role_file`, and counts until the store is served with a configuration that says the same: a process
that is started again with the configuration of before must not fall back. From then on, the
configuration counts again.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Final, Protocol

from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.role_file import KeptRole, Promotion, load_role, save_role
from rmqstore_spark.errors import CorruptStoreError, StoreWriteError

_log = logging.getLogger(__name__)

ASYNC_MASTER: Final = "ASYNC_MASTER"
SYNC_MASTER: Final = "SYNC_MASTER"
SLAVE: Final = "SLAVE"


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

    Raises:
        CorruptStoreError: the file with the role cannot be read.
    """

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
        """Whether expiry keeps what waits here; a slave's master knows what that is."""
        return self._name != SLAVE

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
