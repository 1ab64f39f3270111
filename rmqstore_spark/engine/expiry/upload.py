"""Copies files to another file system, and makes sure that the copies are complete."""

from __future__ import annotations

import os
import threading
import zlib
from typing import Any, BinaryIO, Final

from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem

from rmqstore_spark.errors import StoreWriteError
from rmqstore_spark.files.durable import sync_file, sync_folder

_AT_ONCE: Final = 4 << 20
_PENDING: Final = "uploading"


class StoppedError(Exception):
    """The store is closing, so a copy was aborted."""


class Upload:
    """Copies files into a folder of a file system.

    Args:
        fs: the file system.
        root: the folder.
        closing: aborts a copy when it is set.
    """

    def __init__(self, fs: AbstractFileSystem, root: str, closing: threading.Event) -> None:
        self._fs = fs
        self._root = root
        self._closing = closing

    def copy(self, path: str, name: str, size: int = -1, *, replace: bool) -> int:
        """Copy a file: temporary name, size and CRC of the copy checked, rename.

        Args:
            path: the local file.
            name: path of the copy in the folder.
            size: bytes from its begin that are copied; -1 for all.
            replace: replace an older copy. Otherwise a copy that exists must be the same.

        Returns:
            Bytes that were copied; 0 if the same copy existed.

        Raises:
            StoreWriteError: the copy failed, or an existing one differs.
            StoppedError: the store is closing.
        """
        target = f"{self._root}/{name}"
        temporary = f"{self._root}/{_PENDING}/{name.replace('/', '-')}"
        try:
            with open(path, "rb") as source:
                wanted = os.fstat(source.fileno()).st_size if size < 0 else size
                if not replace and self._fs.exists(target):
                    self._require_same(source, target, wanted)
                    return 0
                return self._send(source, temporary, target, wanted)
        except (StoreWriteError, StoppedError):
            raise
        except Exception as error:  # every file system library raises its own exceptions
            text = f"{path} could not be copied to {target}: {type(error).__name__}: {error}."
            raise StoreWriteError(text) from error

    def _send(self, source: BinaryIO, temporary: str, target: str, size: int) -> int:
        for path in (temporary, target):
            self._fs.makedirs(os.path.dirname(path), exist_ok=True)
        with self._fs.open(temporary, "wb") as file:
            sent = self._pass(source, size, file)
        if isinstance(self._fs, LocalFileSystem):
            sync_file(temporary)
        with self._fs.open(temporary, "rb") as file:
            got = self._pass(file, size + 1, None)
        if sent != got or sent[0] != size:
            self._fs.rm(temporary)
            raise StoreWriteError(
                f"{target} could not be written: {sent[0]} of {size} bytes were sent (CRC "
                f"{sent[1]:08x}), and the copy has {got[0]} (CRC {got[1]:08x})."
            )
        self._fs.mv(temporary, target)
        if isinstance(self._fs, LocalFileSystem):
            sync_folder(os.path.dirname(target))
        return size

    def _require_same(self, source: BinaryIO, target: str, size: int) -> None:
        with self._fs.open(target, "rb") as file:
            there = self._pass(file, size + 1, None)
        here = self._pass(source, size, None)
        if here != there:
            raise StoreWriteError(
                f"{target} is not a copy of {source.name}: it has {there[0]} bytes with CRC "
                f"{there[1]:08x}, not {here[0]} with CRC {here[1]:08x}. Archive to another folder, "
                "or remove that file if it is damaged."
            )

    def _pass(self, source: Any, size: int, to: Any) -> tuple[int, int]:
        """Read up to `size` bytes, write them, and return their number and CRC."""
        done = crc = 0
        while done < size:
            if self._closing.is_set():
                raise StoppedError
            data = source.read(min(_AT_ONCE, size - done))
            if not data:
                break
            if to is not None:
                to.write(data)
            crc = zlib.crc32(data, crc)
            done += len(data)
        return done, crc
