"""Ready-made Spark jobs (docs/jobs.md): `python -m rmqstore_spark.pipelines.NAME --help`.

    backfill           stores to Parquet: `backfill_task`, `pieces`, `output`, `tally`
    stream_to_parquet  the same as a stream: `following`, `columns`
    verify_store       verification, spread over tasks
    replay             stores or Parquet into other stores: `replay_parquet`, `pacing`
    copy_topic         one topic: `targets`

All of them use `arguments`, `session`, `failures`, `progress`, `partitions` and `parquet_files`.
The programs in `jobs/` call these, for spark-submit.
"""

from rmqstore_spark.workers import require_spark

require_spark()
