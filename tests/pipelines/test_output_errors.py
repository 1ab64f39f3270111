"""Errors of the folders that jobs write to, and what a job prints of them; bugs keep theirs."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from rmqstore_spark.errors import OptionError, RmqStoreError, StoreLockedError
from rmqstore_spark.pipelines import backfill, copy_topic, replay, running, stream_to_parquet
from rmqstore_spark.pipelines.output_errors import describe_java, writing
from rmqstore_spark.pipelines.running import CONF, FAILED, WRONG_OPTION, run_job
from tests.pipelines.running import run_backfill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Capture = pytest.CaptureFixture[str]

FULL = "/dev/full"
needs_full = pytest.mark.skipif(not Path(FULL).exists(), reason="this system has no /dev/full")


def raising(error: BaseException) -> Callable[[], int]:
    def body() -> int:
        raise error

    return body


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "Free some space"), (errno.EACCES, "Let the job's user write there"),
     (errno.ENOTDIR, "Use another folder")],
)  # fmt: skip
@pytest.mark.parametrize("file", ["/data/out/x/plan.json", "/data"])
def test_a_file_of_the_output(number: int, remedy: str, file: str, capsys: Capture) -> None:
    error = OSError(number, os.strerror(number), file)
    assert run_job(raising(error), ["file:///data/out"]) == FAILED
    said = capsys.readouterr().err
    assert said.startswith(f"error: {file} cannot be written: {os.strerror(number)}. {remedy}")


def test_an_error_without_a_file_names_all_places(capsys: Capture) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert run_job(raising(full), ["s3://lake/out", "/checkpoint"]) == FAILED
    assert capsys.readouterr().err.startswith("error: s3://lake/out or /checkpoint cannot be ")
    refused = PermissionError("Access Denied")  # as s3fs raises it
    expected = pytest.raises(RmqStoreError, match=r"out cannot be written: Access Denied\. Let")
    with expected, writing("s3://lake/out"):
        raise refused


@pytest.mark.parametrize(
    "bug",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/data/out/x"),
        PermissionError(errno.EACCES, "Permission denied", "/data/outer/x"),
        OSError(errno.EBADF, "Bad file descriptor"),
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
        ValueError("a bug"),
    ],
)
def test_what_is_not_expected_is_raised(bug: Exception) -> None:
    with pytest.raises(type(bug)) as raised:
        run_job(raising(bug), ["/data/out"])
    assert raised.value is bug


def test_errors_of_this_package_stay_as_they_are(capsys: Capture) -> None:
    assert run_job(raising(StoreLockedError("it is open")), ["/data/out"]) == FAILED
    assert run_job(raising(OptionError("it is wrong")), ["/data/out"]) == WRONG_OPTION
    assert capsys.readouterr().err == "error: it is open\nerror: it is wrong\n"


@needs_full
def test_a_full_disk_of_a_backfill(
    golden: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    opened = LocalFileSystem._open

    def on_full_disk(self: Any, path: str, mode: str = "rb", **more: Any) -> Any:
        wanted = FULL if mode == "wb" and path.endswith(".parquet") else path
        return opened(self, wanted, mode, **more)

    monkeypatch.setattr(LocalFileSystem, "_open", on_full_disk)
    out = tmp_path / "out"
    assert run_job(lambda: run_backfill(golden("tiny") / "store", out), [str(out)]) == FAILED
    assert capsys.readouterr().err == (
        f"error: {out}/_backfill/attempts cannot be written: No space left on device. "
        "Free some space there, and repeat the command.\n"
    )


# As a stream to Parquet printed it, shortened.
FULL_IN_SPARK = """\
[STREAM_FAILED] Query [id = 1] terminated with exception: [TASK_WRITE_FAILED] Task failed while
org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/out.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailed(QueryExecutionErrors.scala:823)
Caused by: org.apache.parquet.util.AutoCloseables$ParquetCloseResourceException: Unable to close
\tat org.apache.parquet.util.AutoCloseables.uncheckedClose(AutoCloseables.java:85)
Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device
\tat org.apache.hadoop.fs.RawLocalFileSystem$LocalFSFileOutputStream.write(RawLocalFileSystem:549)
\tSuppressed: java.nio.file.AccessDeniedException: /elsewhere: Permission denied
Caused by: java.io.IOException: No space left on device
"""


@pytest.mark.parametrize(
    ("trace", "told"),
    [
        (FULL_IN_SPARK, "/out or /ck cannot be read or written: No space left on device. Free"),
        (
            "java.io.IOException: No space left on device",
            "/out or /ck or Spark's own folder (spark.local.dir) cannot be read or written: No ",
        ),
        (
            "o7.start.\n: java.io.FileNotFoundException: /ck/offsets/.1.crc (Permission denied)",
            "/ck/offsets/.1.crc cannot be read or written: Permission denied. Let the job's user",
        ),
        (
            "java.io.IOException: Mkdirs failed to create file:/out/x (exists=false, cwd=file:/y)",
            "/out/x cannot be read or written: Permission denied. Let the job's user",
        ),
    ],
)
def test_errors_of_files_in_java(trace: str, told: str) -> None:
    described = describe_java(trace, ["/out", "/ck"])
    assert described is not None
    assert described.startswith(told)


@pytest.mark.parametrize(
    "trace",
    [
        'java.io.IOException: Cannot run program "python4": error=13, Permission denied',
        "java.net.ConnectException: Permission denied",
        "org.apache.spark.SparkException: Python worker exited\nCaused by: java.io.EOFException",
        "java.lang.IllegalStateException: the file already exists",
    ],
)
def test_other_errors_of_java_are_not_told_as_those_of_files(trace: str) -> None:
    assert describe_java(trace, ["/out"]) is None


@needs_full
def test_what_java_throws(session: SparkSession, capsys: Capture) -> None:
    jvm = session._jvm
    assert jvm is not None
    stream = jvm.java.io.FileOutputStream(FULL)
    assert run_job(lambda: stream.write(1), ["/out"]) == FAILED
    assert "error: /out or Spark's own folder (spark.local.dir) cannot" in capsys.readouterr().err
    with pytest.raises(Exception, match="NullPointerException"):
        run_job(lambda: jvm.java.util.Objects.requireNonNull(None), ["/out"])


@pytest.mark.parametrize(
    ("text", "code"),
    [("OptionError: it is wrong", WRONG_OPTION), ("DataLossError: it is gone", FAILED)],
)
def test_the_exit_code_of_what_spark_passes_on(text: str, code: int, capsys: Capture) -> None:
    from pyspark.errors import PySparkException

    error = PySparkException(f"[X] Spark's words: rmqstore_spark.errors.{text}\n SQLSTATE: 38000")
    assert run_job(raising(error)) == code
    assert capsys.readouterr().err == f"error: {text.partition(': ')[2]}\n"


ENDPOINT = "rmq://127.0.0.1:1"


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (backfill, ["out", "--schema", "body string"]),
        (backfill, ["out", "--through-dataframe"]),
        (stream_to_parquet, ["out", "--checkpoint", "c"]),
        (copy_topic, ["orders", ENDPOINT]),
        (replay, [ENDPOINT, "--checkpoint", "c"]),
    ],
)
@pytest.mark.parametrize(
    ("wrong", "code", "told"),
    [
        ([], FAILED, "does not exist. Use the broker's storePathRootDir"),
        (["--planBy", "abc"], WRONG_OPTION, "Option planBy must be"),
    ],
)
def test_a_wrong_source_is_told_before_spark_starts(
    job: Any, words: list[str], wrong: list[str], code: int, told: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture,
) -> None:  # fmt: skip
    def start(_: str) -> None:
        raise AssertionError("Spark starts")

    monkeypatch.setattr(running, "start_session", start)
    assert job.main([str(tmp_path / "nowhere"), *words, *wrong]) == code
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1


def test_the_log_has_no_frames_of_what_is_told(session: SparkSession) -> None:
    """The layout of `conf/log4j2.properties`, which a clone's jobs use."""
    jvm = session._jvm
    assert jvm is not None
    core = jvm.org.apache.logging.log4j
    text = (CONF / "log4j2.properties").read_text()
    found = re.search(r"^appender\.console\.layout\.pattern = (.+)$", text, re.MULTILINE)
    assert found is not None
    builder = core.core.layout.PatternLayout.newBuilder()
    builder = builder.withPattern(found[1].replace("\\\\", "\\")).withAlwaysWriteExceptions(False)
    layout = builder.build()

    def lines(message: str) -> list[str]:
        thrown = jvm.java.lang.RuntimeException(message)
        event = core.core.impl.Log4jLogEvent.newBuilder().setLoggerName("a.B").setThrown(thrown)
        event = event.setMessage(core.message.SimpleMessage("It failed")).setLevel(core.Level.ERROR)
        printed: str = layout.toSerializable(event.build())
        assert printed.endswith("\n")
        return printed.splitlines()

    head, cause = lines("Spark's words: rmqstore_spark.errors.RowError: row 1")
    assert head.endswith(" ERROR B: It failed")
    assert cause == (
        "java.lang.RuntimeException: Spark's words: rmqstore_spark.errors.RowError: row 1"
    )
    assert len(lines("No space left on device\n\tat x\nIOException: No space left on device")) == 2
    bug = lines("a bug")
    assert bug[1] == "java.lang.RuntimeException: a bug"
    assert len(bug) > 3
