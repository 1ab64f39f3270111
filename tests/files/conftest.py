"""One folder, published on every kind of file system that the reader can meet."""

from __future__ import annotations

import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from rmqstore_spark.files.systems.base import Files
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.files.systems.open import open_files
from rmqstore_spark.files.systems.remote import FsspecFiles
from tests.files.ranges import RangeFileSystem

Publish = Callable[[Path], tuple[Files, str]]
"""Gives the files and the path at which a local folder can now be read."""


def _local(folder: Path) -> tuple[Files, str]:
    return open_files(folder)


def _local_over_fsspec(folder: Path) -> tuple[Files, str]:
    return FsspecFiles(LocalFileSystem()), str(folder)


def _memory(folder: Path) -> tuple[Files, str]:
    name = f"/{uuid.uuid4().hex}/{folder.name}"
    fs = MemoryFileSystem()
    fs.makedirs(name)
    for path in sorted(folder.rglob("*")):
        target = f"{name}/{path.relative_to(folder).as_posix()}"
        if path.is_dir():
            fs.makedirs(target, exist_ok=True)
        else:
            fs.pipe(target, path.read_bytes())
    return open_files(f"memory:/{name}")


def _zip(folder: Path) -> tuple[Files, str]:
    archive = folder.parent / f"{uuid.uuid4().hex}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for path in sorted(folder.rglob("*")):
            out.write(path, f"{folder.name}/{path.relative_to(folder).as_posix()}")
    return open_files(f"zip://{folder.name}::{archive}")


def _ranges(folder: Path) -> tuple[Files, str]:
    name = f"{uuid.uuid4().hex}/{folder.name}"
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            key = f"{name}/{path.relative_to(folder).as_posix()}"
            RangeFileSystem.objects[key] = path.read_bytes()
    return FsspecFiles(RangeFileSystem()), name


_KINDS = {
    "local": _local,
    "file": _local_over_fsspec,
    "memory": _memory,
    "zip": _zip,
    "ranges": _ranges,
}


@pytest.fixture(params=list(_KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    """Name of the file system."""
    return str(request.param)


@pytest.fixture
def publish(kind: str) -> Iterator[Publish]:
    """Publish a folder on a file system."""
    opened: list[Files] = []

    def publish(folder: Path) -> tuple[Files, str]:
        files, path = _KINDS[kind](folder)
        opened.append(files)
        return files, path

    yield publish
    for files in opened:
        files.close()
    RangeFileSystem.objects.clear()
    RangeFileSystem.requests.clear()
    RangeFileSystem.listings.clear()
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def local() -> Iterator[LocalFiles]:
    """This machine's own files."""
    files = LocalFiles()
    yield files
    files.close()
