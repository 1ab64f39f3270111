"""The examples run, and show the promised results."""

from __future__ import annotations

import base64
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from nbclient import NotebookClient
from nbformat import read as read_notebook

from rmqstore_spark.reader import Store
from rmqstore_spark.reader.groups import group_offsets
from rmqstore_spark.remoting.codec.bodies import dump_body
from rmqstore_spark.remoting.codec.codes import RequestCode
from tests.ha.broker import Broker, answering
from tests.ha.peers import mastering
from tests.pipelines.processes import ROOT, environment
from tests.support.messages.batches import rows_block
from tests.support.pictures import save_picture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Golden = Callable[[str], Path]

EXAMPLES = ROOT / "examples"
MESSAGES = 981
"""Those of `live` that are not in system topics."""


def left_in(folder: Path) -> list[Path]:
    """What stayed there of this package."""
    return list(folder.rglob("rmqstore-*"))


def test_the_store_that_comes_along_is_the_brokers_own(golden: Golden, tmp_path: Path) -> None:
    shutil.unpack_archive(EXAMPLES / "data" / "live-store.tar.gz", tmp_path)
    ours, theirs = tmp_path / "store", golden("live") / "store"
    names = sorted(path.relative_to(theirs) for path in theirs.rglob("*"))
    assert sorted(path.relative_to(ours) for path in ours.rglob("*")) == names
    files = [name for name in names if (theirs / name).is_file()]
    assert files
    assert all((ours / name).read_bytes() == (theirs / name).read_bytes() for name in files)


def test_the_notebooks_can_be_opened_as_they_say() -> None:
    for path in EXAMPLES.glob("*.ipynb"):
        notebook: Any = read_notebook(path, as_version=4)  # type: ignore[no-untyped-call]
        assert "`make notebook`" in notebook.cells[0].source
        assert "`jupyter lab examples`" in notebook.cells[0].source
    assert "`make notebook`" in (ROOT / "README.md").read_text(encoding="utf-8")
    planned = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "notebook"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "'.[notebooks]'" in planned
    assert planned.rstrip().endswith("-m jupyterlab examples")


def demo(name: str, folder: Path) -> str:
    """Run one of the demos as `make` does; returns what it shows."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=folder, env=environment() | {"TMPDIR": str(folder)}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert left_in(folder) == []
    return done.stdout


def assert_shows(lines: Sequence[str], output: str) -> None:
    """Each pattern matches a line."""
    for line in lines:
        assert re.search(line, output, re.MULTILINE), f"{line} is not in\n{output}"


@pytest.mark.slow
@pytest.mark.fault
def test_demo(tmp_path: Path) -> None:
    """Promises 2 and 3: the store process is killed in the middle of a micro-batch.

    In the second scene, a stream reads from a store and its follower while the store is killed. In
    the third, a consumer of RocketMQ gets what Spark writes.
    """
    output = demo("demo.py", tmp_path)
    assert_shows(
        (
            r"^It serves rmq://127\.0\.0\.1:\d+,",
            r"^Then the store process was killed, with [\d,]*[1-9][\d,]* bytes of the next one st",
            r"INFO The store was not closed cleanly;",
            r"^made +120,000 +120,000 ",
            r"^read as a stream +120,000 +120,000 +0 +0 +60,000,800\.00$",
            r"^read as a table +120,000 +120,000 +0 +0 +60,000,800\.00$",
            r"^orders +0-7 +120000 ",  # rmqstore topics
            r"^no damage found, 0 note",  # rmqstore verify
            r"^read from both +24,000 +24,000 +0 +0$",  # the second scene
            r"^(greeting 4 of Spark, \d+ ms after|There is no C\+\+ client)",  # the third
            r"docs/writing\.md",
        ),
        output,
    )
    batches = [
        int(number) for number in re.findall(r"^ +(\d+) +10,000 +[\d,]+$", output, re.MULTILINE)
    ]
    assert batches == list(range(12))  # one of the two queries reports each
    assert "Traceback" not in output


@pytest.mark.slow
@pytest.mark.fault
def test_demo_of_a_group(tmp_path: Path) -> None:
    """Promises 1 and 2 in a DLedger group: its leader is killed in the middle of a micro-batch."""
    output = demo("demo_group.py", tmp_path)
    assert_shows(
        (
            r"^n[012] leads: it takes messages,",
            r"^n[012] was killed with a part of a micro-batch staged\.",
            r"^n[012] leads now, and n[012] has come back",
            r"^read from n0 +120,000 +120,000 +0 +0$",
            r"^read from n1 +120,000 +120,000 +0 +0$",
            r"^read from n2 +120,000 +120,000 +0 +0$",
            r"^group +(leader|follower)",  # rmqstore stats
            r"docs/dledger\.md",
        ),
        output,
    )


@pytest.mark.slow
def test_demo_of_reading(tmp_path: Path) -> None:
    output = demo("demo_read.py", tmp_path)
    assert_shows(
        (
            r"^LiveTopic +0-3 +900 ",  # rmqstore topics
            r"^LiveTopic +TagA +300 ",  # the batch query
            r"^ +0 +400 +[\d,]+$",  # the stream's first micro-batch
            rf"^The copy holds {MESSAGES} messages\.",
            r"^CID_RMQ_SYS_TRANS +RMQ_SYS_TRANS_HALF_TOPIC +0 +36 +39 +3$",  # rmqstore groups
            r"docs/options\.md",
        ),
        output,
    )


def run_script(name: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a script in this process, with the existing session."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert ended.value.code == 0


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


def executed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Run a notebook as JupyterLab does; returns what its cells show."""
    notebook: Any = read_notebook(EXAMPLES / name, as_version=4)  # type: ignore[no-untyped-call]
    assert all(not cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    for variable, value in environment().items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("TMPDIR", str(folder))
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": EXAMPLES}}
    )
    client.execute()
    assert left_in(folder) == []
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output.data for output in outputs if "data" in output]


def texts_and_plots(shown: list[Any]) -> tuple[list[str], int]:
    """Return the texts that cells show, and the number of plots."""
    texts = [data["text/plain"] for data in shown if "image/png" not in data]
    return texts, len(shown) - len(texts)


# The kernel's own packages warn of what they will change.
KERNEL_WARNS = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.slow
@KERNEL_WARNS
def test_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, plots = texts_and_plots(executed("quickstart.ipynb", tmp_path, monkeypatch))
    assert any("LiveTopic" in text and "TagA" in text for text in texts)
    assert f"({MESSAGES}, {MESSAGES})" in texts  # rows of the stream's copy and of the batch query
    assert plots == 3


@pytest.mark.slow
@KERNEL_WARNS
def test_notebook_that_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, plots = texts_and_plots(executed("write_and_read.ipynb", tmp_path, monkeypatch))
    assert_shows(
        (
            r"^\(0, 0\)$",  # orders written and not read, read and not written
            r"^0 +15000 +15000 +14999$",  # the stream's
            r"^orders( +\d+){8}$",  # queues
            r'\{"order":4711,',  # by key
            r"^commits +6$",  # a table, and five micro-batches
        ),
        "\n".join(texts),
    )
    assert plots == 1


@KERNEL_WARNS
def test_notebook_that_investigates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORE", raising=False)
    shown = executed("investigate.ipynb", tmp_path, monkeypatch)
    texts, plots = texts_and_plots(shown)
    assert_shows(
        (
            r"^\d+ +billing +2 +800 +1156 2026-11-20 09:38:50",  # where it is stuck
            r"order-3210",
            r"^0 +0 +558 ",  # damaged
            r"^3 +3 +556 ",
        ),
        "\n".join(texts),
    )
    assert plots == 2
    told = os.environ.get("SCREENSHOTS")
    folder = ROOT / told / "tutorials" if told else tmp_path
    pictures = [data["image/png"] for data in shown if "image/png" in data]
    save_picture(base64.b64decode(pictures[-1]), folder / "investigate.png")


def test_following_script(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topics = {"orders": {"readQueueNums": 2, "writeQueueNums": 2, "perm": 6}}
    broker = Broker(
        {
            RequestCode.GET_ALL_TOPIC_CONFIG: dump_body(
                {"dataVersion": {"counter": 1}, "topicConfigTable": topics}
            ),
            RequestCode.GET_ALL_CONSUMER_OFFSET: b'{"offsetTable":{"orders@billing":{0:3,1:1}}}',
            RequestCode.GET_ALL_DELAY_OFFSET: b"{}",
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: b"{}",
        }
    )
    with mastering(tmp_path / "master") as (source, master), answering(broker) as address:
        assert source.put(rows_block([b"%d" % n for n in range(20)], ("orders",))).ok
        arguments = [address, "orders", "billing", str(tmp_path / "copy"), "--ha", master.address]
        sizes = ["--set", "mappedFileSizeCommitLog=8192", "--set", "diskMaxUsedSpaceRatio=99"]
        run_script(
            "follow_broker.py", *arguments, *sizes, "--available-now", monkeypatch=monkeypatch
        )
    shown = capsys.readouterr().out
    assert re.search(r"\| +0\| +7\| +3\| +9\|", shown), shown
    assert re.search(r"\| +1\| +9\| +1\| +9\|", shown), shown
    with Store.open(tmp_path / "copy") as copy:
        found = {(o.group, o.queue_id): o.offset for o in group_offsets(copy)}
    assert found["spark", 0] == found["spark", 1] == 10
