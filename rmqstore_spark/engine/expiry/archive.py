"""Keeps expired segments as a store of their own, on any file system that fsspec supports.

    <archive>/rmqstore-archive.json       whose archive it is
    <archive>/commitlog/, consumequeue/, consumequeue_ext/, index/, config/topics.json

A reader can open the archive alone, or together with the store (`files.joined`). The last file of a
queue ends after the last entry whose record is in the archive, and grows with the archive. An index
file is copied when all its messages have expired; until then, searches by key scan the log.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Sequence
from typing import Any, BinaryIO, Final

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem

from rmqstore_spark.engine.expiry.rule import Aged
from rmqstore_spark.engine.failpoints import reach
from rmqstore_spark.engine.open_store import OpenStore
from rmqstore_spark.engine.tables.store_id import store_id
from rmqstore_spark.errors import OptionError, StoreWriteError
from rmqstore_spark.files.durable import sync_file, sync_folder
from rmqstore_spark.files.names import ARCHIVE_NAME
from rmqstore_spark.files.systems.schemes import local_path

_AT_ONCE: Final = 4 << 20
_PENDING: Final = "uploading"
_SHOWN: Final = 3


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


class Archive:
    """The archive of a store. One thread uses it.

    Args:
        url: the folder.
        store: the open store.

    Attributes:
        segments: how many segments were copied.
        bytes: their bytes.

    Raises:
        OptionError: the URL names no folder, or one that overlaps the store.
    """

    def __init__(self, url: str, store: OpenStore) -> None:
        self.segments = self.bytes = 0
        self._store = store
        self._url = url
        self._is_own = False
        local = local_path(url)
        if local is not None:
            ends = [os.path.join(os.path.realpath(path), "") for path in (local, store.path)]
            if ends[0].startswith(ends[1]) or ends[1].startswith(ends[0]):
                raise OptionError(
                    f"archiveTo={url}: the archive must be outside the store {store.path}."
                )
            if not os.path.isabs(local):
                raise OptionError(f"archiveTo={url} is a relative path. Give the whole path.")
            url = os.path.abspath(local)
        try:
            self._fs, root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise OptionError(f"archiveTo={url}: {error}") from error
        self._root = root.rstrip("/")

    def check(self) -> None:
        """Look whether segments can be copied there. Nothing is written.

        Raises:
            StoreWriteError: the folder holds something else, or cannot be reached.
        """
        self._require_own(writes=False)

    def keep(self, segments: Sequence[Aged], closing: threading.Event) -> None:
        """Copy segments, and what the queues hold of them.

        Args:
            segments: ascending; the first ones of the log.
            closing: aborts the copying when it is set.

        Raises:
            StoreWriteError: a copy failed; no segment may be removed.
        """
        upload = Upload(self._fs, self._root, closing)
        try:
            self._require_own()
            for segment in segments:
                name = f"{segment.start:020}"
                path = os.path.join(self._store.log_folder, name)
                self.bytes += upload.copy(path, f"commitlog/{name}", replace=False)
                self.segments += 1
                reach("expiry.after_archive")
            self._keep_queues(upload, segments[0].start, segments[-1].end)
            topics = os.path.join(self._store.path, "config", "topics.json")
            if os.path.exists(topics):
                upload.copy(topics, "config/topics.json", replace=True)
        except StoppedError:
            return

    def keep_index(self, path: str, closing: threading.Event) -> None:
        """Copy an index file.

        Raises:
            StoreWriteError: the copy failed.
        """
        try:
            self._require_own()
            name = f"index/{os.path.basename(path)}"
            Upload(self._fs, self._root, closing).copy(path, name, replace=True)
        except StoppedError:
            return

    def _keep_queues(self, upload: Upload, begin: int, end: int) -> None:
        """Copy the queues' files up to the last entry before a physical offset."""
        queues = self._store.queues
        size, of_entry = queues.file_size, queues.format.size
        for topic, numbers in queues.ranges().items():
            for queue_id in numbers:
                last = queues.first_from(topic, queue_id, end) * of_entry
                at = queues.first_from(topic, queue_id, begin) * of_entry
                folder = f"{topic}/{queue_id}"
                while at < last:
                    start = at // size * size
                    name = f"consumequeue/{folder}/{start:020}"
                    path = os.path.join(self._store.path, *name.split("/"))
                    upload.copy(path, name, min(size, last - start), replace=True)
                    at = start + size
                self._keep_units(upload, f"consumequeue_ext/{folder}")

    def _keep_units(self, upload: Upload, folder: str) -> None:
        """Copy the extension units of a queue, which only a broker writes."""
        path = os.path.join(self._store.path, *folder.split("/"))
        for name in sorted(os.listdir(path)) if os.path.isdir(path) else ():
            upload.copy(os.path.join(path, name), f"{folder}/{name}", replace=True)

    def _require_own(self, *, writes: bool = True) -> None:
        """Refuse a folder with something else in it; mark a new one, if that may be written.

        Raises:
            StoreWriteError: the folder holds other files, or cannot be reached.
        """
        if self._is_own:
            return
        marker = f"{self._root}/{ARCHIVE_NAME}"
        try:
            if self._fs.exists(marker):
                found = json.loads(self._fs.cat_file(marker)).get("storeId")
            else:
                self._require_empty()
                if not writes:
                    return
                found = self._mark(marker)
        except StoreWriteError:
            raise
        except OSError as error:
            text = error.strerror or str(error)
            raise StoreWriteError(f"The archive {self._url} cannot be used: {text}.") from error
        except Exception as error:  # every file system library raises its own exceptions
            text = f"The archive {self._url} cannot be used: {type(error).__name__}: {error}."
            raise StoreWriteError(text) from error
        if found != store_id(self._store.path):
            raise StoreWriteError(
                f"{self._url} is the archive of another store ({found}). Set archiveTo to another "
                "folder."
            )
        self._is_own = True

    def _require_empty(self) -> None:
        there = self._fs.ls(self._root, detail=False) if self._fs.exists(self._root) else []
        if there:
            names = ", ".join(sorted(path.rsplit("/", 1)[-1] for path in there)[:_SHOWN])
            raise StoreWriteError(
                f"{self._url} is not empty, and not an archive ({names}). Set archiveTo to an "
                "empty folder."
            )

    def _mark(self, marker: str) -> str:
        """Make the folder this store's archive."""
        own = store_id(self._store.path)
        self._fs.makedirs(self._root, exist_ok=True)
        name = self._store.config.broker_name
        text = json.dumps({"version": 1, "brokerName": name, "storeId": own})
        self._fs.pipe_file(marker, text.encode())
        return own
