"""Writes messages to Parquet: what the tasks of `backfill` do, and how its output is kept whole.

columns     chooses the columns that a job writes
pieces      converts pieces of work to JSON, and counts their rows
task        writes one piece of work
partitions  splits rows by topic and date
files       writes the files
output      the output folder: the plan, the finished work, and the commit
tally       counts the rows of each queue
"""
