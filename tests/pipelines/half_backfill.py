"""Backfills in one program that finish some pieces and stand still at the next one.

    python -m tests.pipelines.half_backfill '[["STORE", "OUTPUT", "OPTION", ...], ...]'

It never ends by itself: who started it kills it. So it is killed within its work on every machine,
however fast it is, and however late the kill comes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from rmqstore_spark.pipelines.backfill import JOB, backfill
from rmqstore_spark.pipelines.parquet.task import BackfillTask, PieceItem
from rmqstore_spark.pipelines.running import run_tasks, session

__all__ = ["FINISHED", "has_written_its_half", "main"]

FINISHED: Final = 5
"""How many pieces are written: the first ones."""


def has_written_its_half(attempts: Iterable[Path]) -> bool:
    """Whether the job has come to where it stands still.

    Args:
        attempts: the files in which it notes what is finished.
    """
    texts = [path.read_text() for path in attempts]
    return len(texts) == FINISHED and all(map(_is_whole, texts))


def _is_whole(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def main(commands: Sequence[Sequence[str]]) -> None:
    """Run the jobs side by side.

    Args:
        commands: the words of their command lines.
    """
    # A task of each stands still.
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--master local[{len(commands) + 1}] pyspark-shell"
    with session("backfills") as spark, ThreadPoolExecutor(len(commands)) as pool:
        run = partial(_run_half, spark)
        jobs = [pool.submit(backfill, JOB.parse(list(words)), run) for words in commands]
        for ended in as_completed(jobs):
            ended.result()


def _run_half(spark: SparkSession, work: Sequence[PieceItem], task: BackfillTask) -> list[Any]:
    return run_tasks(spark, "backfill", work[: FINISHED + 1], partial(_first_ones, task))


def _first_ones(task: BackfillTask, item: PieceItem) -> Any:
    if item[0] >= FINISHED:
        signal.pause()
    return task(item)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
