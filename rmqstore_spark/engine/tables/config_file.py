"""Files of `config/` that this process writes, with the backups that a broker reads in their place.

See docs/format.md, "A store directory" (upstream: ConfigManager).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.files.configfiles import read_config
from rmqstore_spark.files.durable import make_folder, replace_file
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.layout.fastjson import dump_fastjson

_T = TypeVar("_T")


class ConfigFile:
    """A configuration file of a store. Changed by one thread at a time.

    Args:
        store: the store directory.
        name: the file's name in `config/`, without its suffix `.json`.

    Attributes:
        path: the file.
        value: its content; empty without a file.

    Raises:
        CorruptStoreError: neither the file nor its `.bak` is JSON of the right shape.
    """

    def __init__(self, store: str, name: str) -> None:
        self.path = os.path.join(store, "config", f"{name}.json")
        self._name = name
        self.value: dict[str, Any] = read_config(LocalFiles(), self.path) or {}
        self._data: bytes | None = None  # of the value, once it was written

    def replace(self, value: dict[str, Any]) -> None:
        """Write a new content, and the old one as the backup. Both are on disk afterwards.

        Raises:
            StoreWriteError: a file could not be written. The old content counts.
        """
        data = dump_fastjson(value).encode()
        reach(f"{self._name}.before_write")
        make_folder(os.path.dirname(self.path))
        if os.path.exists(self.path):
            before = self._data or dump_fastjson(self.value).encode()
            replace_file(f"{self.path}.bak", before)
            reach(f"{self._name}.after_backup")
        replace_file(self.path, data)
        self.value, self._data = value, data


class ConfigTable(Generic[_T]):
    """A table in a file of `config/`, by name, with the `dataVersion` of its last change.

    Each change is on disk before it counts, and many can be written with one write.

    Args:
        file: the file.
        key: the table's key in it.
        held: the content.
        clock: returns milliseconds since the epoch.
        encode: returns the table of the file for a content.
        changed: called when a change counts.

    Attributes:
        held: the content that counts. It is replaced, never changed: any thread may read it.
    """

    def __init__(
        self,
        file: ConfigFile,
        key: str,
        held: dict[str, _T],
        clock: Callable[[], int],
        encode: Callable[[dict[str, _T]], dict[str, Any]],
        changed: Callable[[], None],
    ) -> None:
        self.held = held
        self._file = file
        self._key = key
        self._clock = clock
        self._encode = encode
        self._changed = changed
        self._lock = threading.RLock()
        self._depth = 0
        self._now = held
        self._next: dict[str, Any] | None = None

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Let only this thread change the table, and write what it has changed at the end.

        Within the body it may be called again: then the end of the outermost body writes. If a body
        or the writing fails, nothing of it counts. Raises StoreWriteError if the writing fails.
        """
        with self._lock:
            before, self._depth = (self.now, self._next), self._depth + 1
            self._now = before[0]
            try:
                yield
                if self._depth == 1:
                    self.write()
            except BaseException:
                self._now, self._next = before
                raise
            finally:
                self._depth -= 1

    @property
    def is_outermost(self) -> bool:
        """Whether this thread is in no body within another."""
        return self._depth == 1

    @property
    def now(self) -> dict[str, _T]:
        """The content with what this thread has changed. Only within `changing`."""
        return self._now if self._depth else self.held

    @property
    def version(self) -> dict[str, Any]:
        """The `dataVersion`: `counter` and `timestamp`; empty before any change."""
        found = self._file.value.get("dataVersion")
        return dict(found) if isinstance(found, dict) else {}

    def is_at(self, version: object) -> bool:
        """Return whether the file has this `dataVersion`."""
        return self._file.value.get("dataVersion") == version

    def set(self, content: dict[str, _T], version: dict[str, Any] | None = None) -> None:
        """Change the content. Only within `changing`.

        Args:
            content: the new content.
            version: the `dataVersion` to write; None: the next one.
        """
        self._now, self._next = content, version

    def write(self) -> None:
        """Write what was changed so far. Only within the outermost `changing`."""
        if self._now is self.held:
            return
        version, old = self._next, self.version
        if version is None:
            count = (old.get("counter") or 0) + 1
            version = {**old, "counter": count, "timestamp": self._clock()}
        table = self._encode(self._now)
        self._file.replace({**self._file.value, "dataVersion": version, self._key: table})
        self.held = self._now
        self._changed()
