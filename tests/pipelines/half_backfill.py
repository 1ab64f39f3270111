"""`jobs.backfill`, whose tasks finish some pieces and stand still at the others.

    python -m tests.pipelines.half_backfill STORE OUTPUT [OPTION ...]

It never ends by itself: who started it kills it. So it is killed within its work on every machine,
however fast it is, and however late the kill comes.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from pyspark.sql import SparkSession

from rmqstore_spark.pipelines import backfill
from rmqstore_spark.pipelines.parquet.task import BackfillTask, PieceItem
from rmqstore_spark.pipelines.progress import run_tasks

__all__ = ["FINISHED", "main"]

FINISHED: Final = 5
"""How many pieces are written: the first ones."""


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
