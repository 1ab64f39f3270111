"""The examples of README.md work unchanged, on a store that RocketMQ wrote."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from rmqstore_spark.cli.app import app
from tests.pipelines.processes import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    fenced = [block.partition("\n") for block in README.split("```")[1::2]]
    return [text for named, _, text in fenced if named == language]


@pytest.fixture
def here(golden: Callable[[str], Path], tmp_path: Path) -> Callable[[str], str]:
    """Puts the store of the text, and what it writes, into a folder of the test."""
    shutil.copytree(golden("live") / "store", tmp_path / "data" / "broker-a" / "store")

    def moved(text: str) -> str:
        for name in ("data", "lake"):
            text = text.replace(f"/{name}/", f"{tmp_path}/{name}/")
        # The store has other names.
        text = text.replace("'orders'", "'LiveOrder'").replace('"orders"', '"LiveOrder"')
        return text.replace("paid || shipped", "TagO || none")

    return moved


def test_python_and_sql(
    here: Callable[[str], str], spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {"spark": spark}
    for block in blocks("python"):
        exec(here(block), names)
    assert names["messages"].count() == 981
    assert names["orders"].columns == ["queueId", "queueOffset", "keys", "body"]
    assert names["orders"].count() == 20
    assert spark.read.parquet(str(tmp_path / "lake" / "messages")).count() == 981
    assert names["batch"].num_rows == 5
    written = spark.read.format("rmqstore").load(str(tmp_path / "data" / "orders" / "store"))
    # What the stream copied, and the rows of the table.
    assert written.where("topic = 'LiveOrder'").count() == 1020
    assert written.count() == 1981

    (statements,) = blocks("sql")
    create, count, _ = here(statements).split(";")
    try:
        spark.sql(create)
        assert sorted(map(tuple, spark.sql(count).collect())) == [(n, 5) for n in range(4)]
    finally:
        spark.sql("DROP TABLE IF EXISTS messages")


def test_commands(here: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    (shown,) = blocks("")
    parts = re.split(r"^\$ ", here(shown), flags=re.MULTILINE)[1:]
    assert len(parts) == 5
    for part in parts:
        command, _, expected = part.partition("\n")
        done = CliRunner().invoke(app, command.split()[1:])
        assert done.exit_code == 0, done.output
        assert done.stdout.strip() if not expected else done.stdout == expected


@pytest.mark.parametrize(
    "page", ["README.md", *(f"docs/{name}.md" for name in ("cli", "jobs", "operate", "writing"))]
)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\(\s*([^)\s]+)\s*\)", text)
    assert links
    for link in links:
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = (ROOT / page).parent / file if file else ROOT / page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", each).lower().replace(" ", "-") for each in headings]
            assert anchor in anchors, link
