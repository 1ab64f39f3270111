"""`jobs.backfill`, whose tasks finish some pieces and stand still at the others.

    python -m tests.pipelines.half_backfill STORE OUTPUT [OPTION ...]

It never ends by itself: who started it kills it. So it is killed within its work on every machine,
however fast it is, and however late the kill comes.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from rmqstore_spark.pipelines import backfill
from rmqstore_spark.pipelines.parquet.task import BackfillTask, PieceItem
from rmqstore_spark.pipelines.running import run_tasks

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


def main(command: list[str]) -> None:
    """Run the job.

    Args:
        command: the words of its command line.
    """

    def run(
        spark: SparkSession, description: str, work: Sequence[PieceItem], task: BackfillTask
    ) -> list[Any]:
        return run_tasks(spark, description, work, partial(_first_ones, task))

    backfill.run_tasks = run  # type: ignore[assignment, attr-defined]
    backfill.main(command)


def _first_ones(task: BackfillTask, item: PieceItem) -> Any:
    if item[0] >= FINISHED:
        signal.pause()
    return task(item)


if __name__ == "__main__":
    main(sys.argv[1:])
