"""A file for each store that is compared; `KINDS` has all by name."""

from __future__ import annotations

from typing import Final

from benchmarks.stores.kind import Kind
from benchmarks.stores.kinds.leveldb import LevelDb
from benchmarks.stores.kinds.mariadb import MariaDb
from benchmarks.stores.kinds.memory import Memory
from benchmarks.stores.kinds.postgresql import PostgreSql
from benchmarks.stores.kinds.rocksdb import RocksDb
from benchmarks.stores.kinds.sqlite import Sqlite
from benchmarks.stores.kinds.this_store import ThisStore

__all__ = ["KINDS"]

_ALL: Final[tuple[Kind, ...]] = (
    ThisStore(), Sqlite(), PostgreSql(), MariaDb(), LevelDb(), RocksDb(), Memory(),
)  # fmt: skip
KINDS: Final[dict[str, Kind]] = {kind.name: kind for kind in _ALL}
