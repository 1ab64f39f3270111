"""Runs a job on Spark: its session, its tasks or stream with their progress, and how it fails."""

from __future__ import annotations

import os
import re
import signal
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from rmqstore_spark.base.workers import use_this_python
from rmqstore_spark.datasource.spark_api import HAS_READ_LIMITS
from rmqstore_spark.errors import OptionError, RmqStoreError
from rmqstore_spark.pipelines.output_errors import describe_java, writing

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

CONF = Path(__file__).resolve().parents[2] / "conf"
"""The settings of the repository, if the package is used from there."""


@contextmanager
def session(app_name: str) -> Iterator[SparkSession]:
    """Yield the session of `start_session`, and stop it at the end."""
    spark = start_session(app_name)
    try:
        yield spark
    finally:
        spark.stop()


def start_session(app_name: str) -> SparkSession:
    """Return the session of spark-submit, or a local one with the settings of `conf/`.

    Executors need `rmqstore_spark` installed.
    """
    prepare_environment()
    from pyspark.sql import SparkSession

    # Dates and times are UTC in everything that the jobs write and print.
    builder = SparkSession.builder.appName(app_name).config("spark.sql.session.timeZone", "UTC")
    return builder.getOrCreate()


def prepare_environment() -> None:
    """Set the variables that Spark reads at its start, unless the user has set them."""
    if "SPARK_HOME" not in os.environ and CONF.is_dir():
        os.environ.setdefault("SPARK_CONF_DIR", str(CONF))
    if _master().startswith("local"):
        use_this_python()


def _master() -> str:
    """Return where Spark will run, as far as this is known before it starts."""
    arguments = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    if found := re.search(r"(?:--master[ =]|spark\.master=)(\S+)", arguments):
        return found[1]
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (home and f"{home}/conf")
    settings = Path(folder, "spark-defaults.conf") if folder else None
    if settings is not None and settings.is_file():
        text = settings.read_text(encoding="utf-8")
        if found := re.search(r"^\s*spark\.master[\s=:]+(\S+)", text, re.MULTILINE):
            return found[1]
    return os.environ.get("MASTER", "local")


# Spark passes on an exception of its Python processes as text, after its own words.
_OURS: Final = re.compile(r"(?:^|: )rmqstore_spark\.errors\.(\w+): (.+)$", re.MULTILINE)

FAILED: Final = 1
WRONG_OPTION: Final = 2


def run_job(body: Callable[[], int | None], places: Sequence[str] = ()) -> int:
    """Run a job; print an error that is not a bug in one line, without a traceback.

    Those are errors of this package, and of the folders that the job writes to.

    Args:
        places: paths or URLs of those folders.

    Returns:
        The exit code: the body's result (None is 0), 2 for a wrong option, or 1 for another error.
    """
    try:
        with writing(*places):
            return body() or 0
    except RmqStoreError as error:
        text, code = str(error), WRONG_OPTION if isinstance(error, OptionError) else FAILED
    except KeyboardInterrupt:
        text, code = "interrupted", FAILED
    except Exception as error:
        found = _of_spark(error, places)
        if found is None:
            raise
        text, code = found
    print(f"error: {text}", file=sys.stderr, flush=True)
    return code


def _of_spark(error: Exception, places: Sequence[str]) -> tuple[str, int] | None:
    """Return what Spark has passed on, and its exit code; None for what is not expected."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException | Py4JJavaError):
        return None
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        kind, told = ours[-1]
        return told, WRONG_OPTION if kind == OptionError.__name__ else FAILED
    # The text of an exception that PySpark has converted is without what caused it.
    described = describe_java(f"{text}\n{getattr(error, '_stackTrace', '')}", places)
    return None if described is None else (described, FAILED)


T = TypeVar("T")
R = TypeVar("R")

_SECONDS = 10.0


def run_tasks(
    spark: SparkSession, description: str, work: Sequence[T], task: Callable[[T], R]
) -> list[R]:
    """Run a task for each item of work, as one Spark job, and print progress periodically.

    Args:
        description: for Spark's own pages.
        work: one item per task.
        task: runs on the executors; Spark repeats it when it fails.

    Returns:
        The results of the tasks, in the order of the work.
    """
    if not work:
        return []
    context, group = spark.sparkContext, uuid.uuid4().hex

    def run() -> list[R]:
        context.setJobGroup(group, description, interruptOnCancel=True)
        return context.parallelize(work, len(work)).map(task).collect()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            while not wait([running], _SECONDS).done:
                print(f"{_finished(context, group):,} of {len(work):,} pieces done", flush=True)
        except BaseException:
            context.cancelJobGroup(group)
            raise
        return running.result()


def _finished(context: SparkContext, group: str) -> int:
    tracker = context.statusTracker()
    done = 0
    for job_id in tracker.getJobIdsForGroup(group):
        job: Any = tracker.getJobInfo(job_id)
        for stage_id in job.stageIds if job else ():
            stage: Any = tracker.getStageInfo(stage_id)
            done += stage.numCompletedTasks if stage else 0
    return done


class Followed(NamedTuple):
    """What became of a query.

    Args:
        rows: of all micro-batches that it finished.
        ended: whether it ended by itself.
        moved: whether it read anything, if only messages that it leaves out.
    """

    rows: int
    ended: bool
    moved: bool


def follow_to_the_end(start: Callable[[], StreamingQuery]) -> Followed:
    """Run a query whose trigger is availableNow, until it has read everything.

    Before Spark 4.2 each run reads one micro-batch: there it is run again until it finds nothing.

    Args:
        start: starts the query, from its checkpoint.
    """
    rows = 0
    while True:
        done = follow(start())
        rows += done.rows
        if HAS_READ_LIMITS or not (done.ended and done.moved):
            return done._replace(rows=rows)


def follow(query: StreamingQuery) -> Followed:
    """Print the progress of each micro-batch, until the query ends or is interrupted."""
    printed, rows, ended, moved = -1, 0, True, False

    def report() -> None:
        nonlocal printed, rows, moved
        for progress in query.recentProgress:
            moved |= any(source.startOffset != source.endOffset for source in progress.sources)
            if progress.batchId > printed and progress.numInputRows:
                print(_line(progress), flush=True)
                printed = progress.batchId
                rows += progress.numInputRows

    def stop(*_: Any) -> None:
        # Raising here would break Spark's connection in the middle of a call.
        nonlocal ended
        ended = False

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while ended and not query.awaitTermination(1):
            report()
        if not ended:
            query.stop()
        report()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return Followed(rows, ended, moved)


def _line(progress: StreamingQueryProgress) -> str:
    return (
        f"batch {progress.batchId}: {progress.numInputRows:,} rows, "
        f"{progress.processedRowsPerSecond:,.0f} rows/s"
    )
