"""Golden stores, opened for reading."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from rmqstore_spark.reader.store import Store
from tests.support.records import commitlog_folders, store_kwargs

Golden = Callable[[str], Path]


@pytest.fixture(params=["local", "memory"])
def open_store(request: pytest.FixtureRequest, golden: Golden) -> Iterator[Callable[[str], Store]]:
    """Give `open_store(name)`, over a plain path and over fsspec's memory file system."""
    opened: list[Store] = []

    def open_one(name: str) -> Store:
        folder = golden(name)
        if request.param == "local":
            store = Store.open(folder / "store", broker_name="b", **store_kwargs(folder))
        else:
            root = f"memory://golden/{name}/store"
            fs, path = fsspec.core.url_to_fs(root)
            if not fs.exists(path):
                fs.put(str(folder / "store"), path, recursive=True)
            folders = [f"{root}/{f.name}" for f in commitlog_folders(folder)]
            more: dict[str, Any] = {"commitlog_paths": folders} if len(folders) > 1 else {}
            store = Store.open(root, broker_name="b", **more)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def copy(golden: Golden, tmp_path: Path) -> Callable[[str], Path]:
    """Give `copy(name)`: a copy of a golden store, to be changed."""

    def copy_one(name: str) -> Path:
        shutil.copytree(golden(name), tmp_path / name)
        return tmp_path / name

    return copy_one
