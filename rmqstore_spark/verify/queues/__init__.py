"""Verifies the ConsumeQueues.

unit       checks the files, and the entries before and after a queue's offsets
expected   computes the entries that a broker writes for records
pool       reads entries ahead for the walk over the log
match      compares the records of the log with their entries
check      checks the entries that no record matched
judge      follows single entries to their records
entries    locates entries, and checks extension units
"""
