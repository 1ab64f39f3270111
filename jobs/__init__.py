"""Spark jobs for whole stores: backfill, stream to Parquet, replay, copy, verification.

    python -m jobs.backfill STORE OUTPUT
    spark-submit jobs/backfill.py STORE OUTPUT

docs/jobs.md describes them.
"""
