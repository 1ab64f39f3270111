"""Spark jobs for whole stores: backfill, continuous copy, verification.

    python -m jobs.backfill STORE OUTPUT
    spark-submit jobs/backfill.py STORE OUTPUT

docs/jobs.md tells what each does.
"""
