"""Run tasks on Spark, and print their progress."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["run_tasks"]

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
