"""The stores of a sidecar: a process that serves what other processes write."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rmqstore_spark.errors import OptionError, RmqStoreError
from rmqstore_spark.files.open import is_endpoint
from rmqstore_spark.files.reads import PLAIN, PacedReads, SparingReads
from rmqstore_spark.reader.store import default_broker_name
from rmqstore_spark.server.stores.foreign import READ_ONLY, ForeignStore
from rmqstore_spark.server.stores.service import ServedPort, StoreService
from rmqstore_spark.wire.endpoint import is_store_name

if TYPE_CHECKING:
    from rmqstore_spark.engine.config.store_config import StoreConfig

_log = logging.getLogger(__name__)

_FAILED: Final = "FAILED"


@dataclass(frozen=True)
class StorePlace:
    """Where a store is, and what it is called.

    Attributes:
        name: its broker name.
        path: the store directory, absolute.
        log_folders: folders of its CommitLog, absolute; None if that is in the store.
    """

    name: str
    path: str
    log_folders: tuple[str, ...] | None = None


def store_places(given: Sequence[str], config: StoreConfig) -> list[StorePlace]:
    """Return the stores that a command line and a configuration name.

    Args:
        given: a PATH or NAME=PATH for each store. A store without a name has `brokerName` if it is
            the only one, and else the name of its folder.
        config: also has `storePathRootDir`, if no store is given, and `storePathCommitLog`.

    Raises:
        OptionError: there is no store; two have the same name; or a name cannot be a store's.
    """
    texts = list(given) or [config.store_path_root_dir]
    if not texts[0]:
        raise OptionError(
            "No store given: give --store PATH, or set storePathRootDir in the file of --config."
        )
    if config.store_path_commit_log and len(texts) > 1:
        raise OptionError(
            "storePathCommitLog is set, and several stores are given. Serve a store whose "
            "CommitLog is elsewhere by a process of its own."
        )
    folders = tuple(map(os.path.abspath, filter(None, config.store_path_commit_log.split(","))))
    places = []
    for text in texts:
        name, path = _split(text)
        if "://" in path or is_endpoint(path):
            raise OptionError(
                f"{path} is a URL, but a store can only be served from a folder of this machine. "
                "Give the path of a folder."
            )
        path = os.path.abspath(path)
        if not name:
            name = config.broker_name if len(texts) == 1 else default_broker_name(path)
        places.append(StorePlace(name, path, folders or None))
    _check_names(places)
    return places


def _split(text: str) -> tuple[str, str]:
    """Split NAME=PATH; a path alone has no name."""
    name, mark, path = text.partition("=")
    return (name, path) if mark and path and "/" not in name else ("", text)


def _check_names(places: Sequence[StorePlace]) -> None:
    by_name: dict[str, StorePlace] = {}
    for place in places:
        if not is_store_name(place.name):
            raise OptionError(
                f"{place.name!r} cannot be the name of a store in an endpoint: it needs 1 to 127 "
                f"letters, digits and . _ - % |. Give one: --store NAME={place.path}."
            )
        other = by_name.setdefault(place.name, place)
        if other is not place:
            raise OptionError(
                f"The stores {other.path} and {place.path} are both called {place.name!r}. Give "
                f"names: --store NAME={place.path}."
            )


class Sidecar(StoreService):
    """Stores that are served read-only, with one limit on what is read of them all.

    Args:
        places: the stores.
        config: the limits that clients are told.
        spares_page_cache: whether reading leaves the page cache as it was.
        max_read_rate: bytes per second; None for no limit.

    Raises:
        RmqStoreError: there is no store at a path, or it cannot be read.
    """

    def __init__(
        self,
        places: Sequence[StorePlace],
        config: StoreConfig,
        *,
        spares_page_cache: bool,
        max_read_rate: int | None,
    ) -> None:
        self._reads = PacedReads(SparingReads() if spares_page_cache else PLAIN, max_read_rate)
        self._foreign = [
            ForeignStore(place.name, place.path, place.log_folders, config, self._reads)
            for place in places
        ]
        super().__init__(self._foreign)

    def start(self, port: ServedPort) -> None:
        """Do nothing: the stores are served as they are."""

    def close(self) -> None:
        """Do nothing: nothing is kept open for writing."""

    def stats(self) -> dict[str, Any]:
        """Return the figures of all stores, ready for JSON.

        The state is FAILED if a store cannot be read; its figures are then missing.
        """
        state, figures = READ_ONLY, {}
        for store in self._foreign:
            try:
                figures[store.name] = store.stats()
            except (RmqStoreError, OSError) as error:
                _log.warning("%s cannot be read: %s", store.name, error)
                state, figures[store.name] = _FAILED, {"state": _FAILED}
        return {"state": state, "readBytes": self._reads.total, "stores": figures}
