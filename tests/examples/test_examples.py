"""The examples run, and show what they promise."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from nbclient import NotebookClient
from nbformat import read as read_notebook

from tests.jobs.processes import ROOT, environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Golden = Callable[[str], Path]

EXAMPLES = ROOT / "examples"
MESSAGES = 981
"""Those of `live` in topics that are not the system's."""


def test_the_store_that_comes_along_is_the_brokers_own(golden: Golden, tmp_path: Path) -> None:
    shutil.unpack_archive(EXAMPLES / "data" / "live-store.tar.gz", tmp_path)
    ours, theirs = tmp_path / "store", golden("live") / "store"
    names = sorted(path.relative_to(theirs) for path in theirs.rglob("*"))
    assert sorted(path.relative_to(ours) for path in ours.rglob("*")) == names
    files = [name for name in names if (theirs / name).is_file()]
    assert files
    assert all((ours / name).read_bytes() == (theirs / name).read_bytes() for name in files)


def test_the_notebook_can_be_opened_as_it_says() -> None:
    notebook: Any = read_notebook(  # type: ignore[no-untyped-call]
        EXAMPLES / "quickstart.ipynb", as_version=4
    )
    said = notebook.cells[0].source
    assert "`make notebook`" in said
    assert "`make notebook`" in (ROOT / "README.md").read_text(encoding="utf-8")
    planned = subprocess.run(
        ["make", "--dry-run", "notebook"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    assert "'.[notebooks]'" in planned
    assert planned.rstrip().endswith("-m jupyterlab examples/quickstart.ipynb")


@pytest.mark.slow
def test_demo(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "demo.py")],
        cwd=tmp_path, env=environment() | {"TMPDIR": str(tmp_path)}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for line in (
        r"^LiveTopic +0-3 +900 ",  # rmqstore topics
        r"^LiveTopic +TagA +300 ",  # the batch query
        r"^ +0 +400 +\d+$",  # the stream's first micro-batch
        rf"^The copy holds {MESSAGES} messages\.",
        r"^CID_RMQ_SYS_TRANS +RMQ_SYS_TRANS_HALF_TOPIC +0 +36 +39 +3$",  # rmqstore groups
        r"docs/options\.md",
    ):
        assert re.search(line, done.stdout, re.MULTILINE), f"{line} is not in\n{done.stdout}"
    assert list(tmp_path.glob("rmqstore-demo-*")) == []


def run_script(name: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a script in this process: it takes the session that is there."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_streaming_script(
    golden: Golden,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = str(golden("live") / "store")
    run_script("streaming.py", store, "--available-now", monkeypatch=monkeypatch)
    counts: dict[tuple[str, str], int] = {}
    row = re.compile(r"^\|([\d:]+) *\|(\w+) *\|(\d+) *\|", re.MULTILINE)
    for at, topic, count in row.findall(capsys.readouterr().out):
        counts[at, topic] = int(count)  # a later micro-batch updates an earlier one
    assert sum(counts.values()) == MESSAGES
    assert counts["00:15:26", "LiveDelay"] == 1


def test_backfill_script(
    golden: Golden,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = str(golden("live") / "store")
    run_script("backfill.py", store, str(tmp_path), monkeypatch=monkeypatch)
    assert capsys.readouterr().out.splitlines() == [
        f"batch:  {MESSAGES} messages",
        "stream: 0 messages since",
    ]


@pytest.mark.slow
# The kernel's own packages warn of what they will change.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook: Any = read_notebook(  # type: ignore[no-untyped-call]
        EXAMPLES / "quickstart.ipynb", as_version=4
    )
    assert all(not cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": EXAMPLES}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [output.data for output in outputs if "data" in output]
    texts = [data["text/plain"] for data in shown if "image/png" not in data]
    assert any("LiveTopic" in text and "TagA" in text for text in texts)
    assert f"({MESSAGES}, {MESSAGES})" in texts  # rows of the stream's copy and of the batch query
    assert len([data for data in shown if "image/png" in data]) == 3
    assert list(tmp_path.glob("rmqstore-quickstart-*")) == []
