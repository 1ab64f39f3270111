"""Which links a store may have: its folders, to folders of their own; no others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmqstore_spark.errors import OptionError
from rmqstore_spark.files.links import LINKABLE, refuse_links


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for name in ("commitlog", "consumequeue/T/0", "index", "config", "rmqstore"):
        (tmp_path / "store" / name).mkdir(parents=True)
    (tmp_path / "disk2").mkdir()
    return tmp_path / "store"


def link(path: Path, target: Path | str) -> None:
    """Put a link in the place of a file or folder."""
    if path.is_dir():
        path.rename(path.parent.parent / f"was-{path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize("name", LINKABLE)
def test_a_folder_of_the_store_may_be_a_link_to_a_folder(store: Path, name: str) -> None:
    link(store / name, store.parent / "disk2")
    refuse_links(str(store))
    os.symlink(store, store.parent / "by-link")
    refuse_links(str(store.parent / "by-link"))


@pytest.mark.parametrize("name", LINKABLE)
@pytest.mark.parametrize("target", ["nowhere", "file", "store", "store/rmqstore", "."])
def test_it_must_lead_to_a_folder_of_its_own(store: Path, name: str, target: str) -> None:
    (store.parent / "file").touch()
    link(store / name, store.parent / target)
    with pytest.raises(OptionError) as error:
        refuse_links(str(store))
    assert f"{store / name} is a link to" in str(error.value)


def test_two_folders_cannot_be_one(store: Path) -> None:
    link(store / "commitlog", store.parent / "disk2")
    link(store / "index", store.parent / "disk2")
    with pytest.raises(OptionError, match=r"is a link to .*disk2.* the folder of .*commitlog"):
        refuse_links(str(store))


def test_a_pipe_in_our_own_folder_is_named(store: Path) -> None:
    (store / "rmqstore").mkdir(exist_ok=True)
    os.mkfifo(store / "rmqstore" / "ledger.json")
    with pytest.raises(OptionError, match=r"ledger\.json is neither a file nor a folder"):
        refuse_links(str(store))


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint", "abort", "lock", "rmqstore", "rmqstore/ledger.json", "rmqstore/staging",
        "commitlog/00000000000000000000",
        "consumequeue/Other", "consumequeue/T/1", "index/20260101000000000", "config/topics.json",
    ],
)  # fmt: skip
@pytest.mark.parametrize("target", ["disk2", "nowhere"])
def test_other_links_are_named(store: Path, name: str, target: str) -> None:
    link(store / name, store.parent / target)
    with pytest.raises(OptionError) as error:
        refuse_links(str(store))
    assert f"{store / name} is a link to {store.parent / target}" in str(error.value)
