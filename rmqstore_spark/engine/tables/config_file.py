"""A file of `config/` that this process writes, with the backup that a broker reads in its place.

See docs/format.md, "A store directory" (upstream: ConfigManager).
"""

from __future__ import annotations

import os
from typing import Any

from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.files.configfiles import read_config
from rmqstore_spark.files.durable import make_folder, replace_file
from rmqstore_spark.files.local import LocalFiles
from rmqstore_spark.layout.fastjson import dump_fastjson


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
