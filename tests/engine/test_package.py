"""The names that the package gives, as docs/writing.md uses them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rmqstore_spark.engine

PAGE = Path(__file__).resolve().parents[2] / "docs" / "writing.md"


def test_the_example_of_the_documents_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PAGE.read_text(encoding="utf-8").partition("\n## Without Spark\n")[2]
    example = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0]
    exec(example.replace("/data/orders/store", str(tmp_path / "store")), {})
    put, read = capsys.readouterr().out.splitlines()
    assert put.endswith("[0 0 1]")
    assert read == "[b'a', b'c']"


def test_all_names_are_there() -> None:
    for name in rmqstore_spark.engine.__all__:
        assert getattr(rmqstore_spark.engine, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = rmqstore_spark.engine.Nothing
