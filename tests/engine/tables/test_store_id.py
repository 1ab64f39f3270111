"""The id by which clients know a store, also where it cannot be saved."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from rmqstore_spark.engine.tables import store_id as module
from rmqstore_spark.engine.tables.store_id import id_of_place, served_store_id, store_id
from rmqstore_spark.errors import StoreWriteError


def _refuse(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def replace_file(path: str, data: bytes) -> None:
        raise StoreWriteError(number, f"{path} could not be written.")

    monkeypatch.setattr(module, "replace_file", replace_file)


def test_a_store_on_a_full_disk_is_served_under_the_id_of_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as full:
        _refuse(full, errno.ENOSPC)
        assert served_store_id(str(tmp_path)) == id_of_place(str(tmp_path))
        assert "store-id could not be written. Until the next start" in caplog.text
        with pytest.raises(StoreWriteError):
            store_id(str(tmp_path))
    kept = served_store_id(str(tmp_path))
    assert kept == served_store_id(str(tmp_path)) == store_id(str(tmp_path))


def test_any_other_failure_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _refuse(monkeypatch, errno.EIO)
    with pytest.raises(StoreWriteError):
        served_store_id(str(tmp_path))
