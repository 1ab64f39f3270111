"""The examples of docs/api, and of the first page, run as they are, on stores of the test."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.accounts import account_file
from tests.support.certificates import make_certificates
from tests.support.processes.serving import served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES: Final = Path(__file__).resolve().parents[2] / "docs" / "api"


def run_page(page: str, changes: dict[str, str], names: dict[str, Any] | None = None) -> None:
    """Run the examples of a page, one after the other, with other places and names in them."""
    text = (PAGES / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert blocks
    given = {} if names is None else names
    for block in blocks:
        for old, new in changes.items():
            block = block.replace(old, new)
        exec(block, given)


def test_the_first_page(
    spark: SparkSession, golden: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run_page("../README.md", {"/tmp/broker-a": str(golden("live"))})
    assert re.search(r"^\| *LiveOrder\| *TagO\| +20\|$", capsys.readouterr().out, re.MULTILINE)


def test_the_package(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = '"/tmp/orders/store"'
    small = f'"{tmp_path}/store", mappedFileSizeCommitLog=1 << 20'  # a test need not fill a disk
    run_page("index.md", {store: small}, {"spark": spark})
    written, started = capsys.readouterr().out.splitlines()
    assert written == "1000"
    assert re.fullmatch(r"\d+ rmq://127\.0\.0\.1:\d+", started)


def test_a_store(golden: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    run_page("store.md", {"/tmp/broker-a": str(golden("live"))})
    lines = capsys.readouterr().out.splitlines()
    assert "LiveOrder (0, 1, 2, 3)" in lines
    assert "Queue('LiveOrder', 0) 0 5" in lines
    assert "5 0" in lines
    assert "1" in lines
    assert any(re.fullmatch(r"\S+ LiveTopic \d \d+", line) for line in lines)


def test_a_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make_certificates(tmp_path / "certificates")
    file = account_file(tmp_path / "key.yml")
    with served(tmp_path / "store") as one:
        changes = {
            "rmq://127.0.0.1:10911": one.endpoint,
            "/etc/rmqstore/spark-key.yml": str(file),
            "/etc/rmqstore/ca.pem": made.ca,
        }
        run_page("client.md", changes)
    bodies, state = capsys.readouterr().out.splitlines()
    assert bodies == "[b'payment 1']"
    assert state.startswith("RUNNING ")
    assert "'payments'" in state


def test_a_writer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_page("writer.md", {"/tmp": str(tmp_path)})
    assert capsys.readouterr().out == "[0 1]\n"


def test_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_page("errors.md", {"/tmp": str(tmp_path)})
    assert capsys.readouterr().out.startswith("no store: ")
