from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmqstore_spark.errors import (
    CorruptStoreError,
    OptionError,
    RmqStoreError,
    StoreNotFoundError,
)
from rmqstore_spark.files.local import LocalFiles
from rmqstore_spark.files.open import local_path, open_files
from rmqstore_spark.files.remote import FsspecFiles


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/data/store", "/data/store"),
        ("/data/store/", "/data/store"),
        ("store", "store"),
        ("./store//", "./store"),
        ("/", "/"),
        ("file:///data/store", "/data/store"),
        ("file:/data/store", "/data/store"),
        ("local:///data/store", "/data/store"),
        ("/odd::name", "/odd::name"),
        ("/odd://name", "/odd://name"),
        ("/with space/%41", "/with space/%41"),
    ],
)
def test_local_paths(url: str, path: str) -> None:
    files, found = open_files(url)
    assert isinstance(files, LocalFiles)
    assert found == path


def test_a_path_object(tmp_path: Path) -> None:
    files, path = open_files(tmp_path)
    assert isinstance(files, LocalFiles)
    assert path == os.fspath(tmp_path)


@pytest.mark.parametrize(
    ("url", "path"),
    [("memory://store", "/store"), ("memory://a/b/", "/a/b"), ("memory:///a", "/a")],
)
def test_urls(url: str, path: str) -> None:
    files, found = open_files(url)
    assert isinstance(files, FsspecFiles)
    assert found == path
    assert local_path(url) is None


@pytest.mark.parametrize("path", ["", " ", "a\0b"])
def test_what_is_no_path(path: str) -> None:
    with pytest.raises(OptionError):
        open_files(path)


def test_an_unknown_kind_of_url_is_an_option_error() -> None:
    with pytest.raises(OptionError, match="nosuch"):
        open_files("nosuch://bucket/store")


def test_storage_options_that_do_not_fit() -> None:
    with pytest.raises((OptionError, RmqStoreError), match="zip"):
        open_files("zip://store", {"mode": "nonsense"})


def test_a_missing_archive(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=r"none\.zip"):
        open_files(f"zip://store::{tmp_path}/none.zip")


@pytest.mark.parametrize("data", [b"", b"PK", b"this is not an archive" * 100])
def test_a_file_that_is_no_archive(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "bad.zip").write_bytes(data)
    with pytest.raises(CorruptStoreError, match=r"bad\.zip"):
        open_files(f"zip://store::{tmp_path}/bad.zip")
