from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmqstore_spark.errors import (
    CorruptStoreError,
    OptionError,
    RmqStoreError,
    StoreAccessError,
    StoreNotFoundError,
)
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.files.systems.open import open_files
from rmqstore_spark.files.systems.remote import FsspecFiles
from rmqstore_spark.files.systems.schemes import local_path


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


HADOOP = """Unable to load libjvm
dlopen(/usr/lib/jvm/default-java/libjvm.so) failed: cannot open shared object file
dlopen(/usr/lib/jvm/default-java//lib/server/libjvm.so) failed: cannot open shared object file"""


@pytest.mark.parametrize(
    ("url", "error", "kind", "words"),
    [
        ("hdfs://nn:8020/store", OSError(HADOOP), OptionError, "set HADOOP_HOME .*CLASSPATH"),
        (
            "hdfs://nn:8020/store",
            OSError("Prior attempt to load libhdfs failed"),
            OptionError,
            "set HADOOP_HOME .*CLASSPATH",
        ),
        ("hdfs://nn/store", ImportError("No module named pyarrow"), OptionError, "install pyarrow"),
        ("s3://bucket/store", ImportError("Install s3fs"), OptionError, "pip install s3fs"),
        ("s3a://bucket/store", ImportError("Install s3fs"), OptionError, "pip install s3fs"),
        ("gs://bucket/store", ImportError("Please install"), OptionError, "pip install gcsfs"),
        ("abfs://c@a/store", ImportError("Install adlfs"), OptionError, "pip install adlfs"),
        (
            "abfss://c@a/store",
            ValueError("Protocol not known: abfss"),
            OptionError,
            "install adlfs",
        ),
        ("s3n://b/store", ValueError("Protocol not known: s3n"), OptionError, "Use s3://BUCKET"),
        ("wasbs://c@a/store", ValueError("Protocol not known: wasbs"), OptionError, "Use abfs://"),
        ("viewfs://c/store", ValueError("Protocol not known: viewfs"), OptionError, "Use hdfs://"),
        ("odd://b/store", ImportError("Install oddfs"), OptionError, "Install oddfs"),
        ("odd://b/store", ValueError("Protocol not known: odd"), OptionError, "no file system for"),
        ("zip://a::s3://b/c.zip", ImportError("Install s3fs"), OptionError, "pip install s3fs"),
        ("s3://b/c", PermissionError("Forbidden"), StoreAccessError, "credentials .*Forbidden"),
        (
            "gs://b/c",
            LookupError("Your default credentials were not found"),
            StoreAccessError,
            "Check them and their rights",
        ),
        ("ftp://h/c", ConnectionRefusedError("refused"), RmqStoreError, "Check the host"),
    ],
)
def test_what_a_file_system_lacks_is_told_in_one_sentence(
    url: str,
    error: Exception,
    kind: type[Exception],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("fsspec.core.url_to_fs", failing)
    with pytest.raises(kind, match=words) as caught:
        open_files(url)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert len(text) < 400
    assert "dlopen" not in text


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("s3://", "bucket"),
        ("gs:///", "bucket"),
        ("abfss://", "container"),
        ("https://", "host"),
        ("hdfs://", "folder"),
        ("zip://a::s3://", "bucket"),
    ],
)
def test_a_url_that_names_no_place(url: str, what: str) -> None:
    with pytest.raises(OptionError, match=f"names no {what}: nothing follows"):
        open_files(url)


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
