"""Tests of the jobs.

running      runs a job in this process; `processes` runs one in its own, and kills it there;
             `half_backfill` is one that is killed within its work
replaying    what the tests of replays share
lakehouse    tables of Delta and Iceberg, and who reads them

A job: test_backfill, test_backfill_spark and test_backfill_ended, test_stream_to_parquet,
test_copy_topic, test_replay, test_verify_store; with tables, test_tables, test_tables_ended,
test_tables_spark and test_stream_to_tables. A part of several: test_arguments, test_partitions,
test_parquet_files, test_plan_files, test_output_errors, test_targets, test_processes.
"""
