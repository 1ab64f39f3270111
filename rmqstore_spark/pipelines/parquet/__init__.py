"""Writes messages to Parquet: what the tasks of `backfill` do, and how its output is kept whole.

task    the pieces of work, and how a task writes one
files   writes rows into files by topic and date, and reads back what these say of themselves
output  the output folder: the plan, the finished attempts with their tallies, and the decision
"""
