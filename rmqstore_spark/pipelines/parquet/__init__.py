"""Writes messages to Parquet: what the tasks of `backfill` do, and how its output is kept whole.

columns     chooses the columns that a job writes
pieces      converts pieces of work to JSON, and counts their rows
task        writes one piece of work
partitions  splits rows by topic and date
files       writes the files
statistics  reads back what they say of themselves
run_folder  the bookkeeping: the plan, the finished attempts, and the decision
output      the output folder, and how files appear in it
tally       counts the rows of each queue
"""
