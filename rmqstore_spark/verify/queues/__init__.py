"""Verifying the ConsumeQueues.

unit       their files, and what lies before and behind their entries
entries    queue entries by themselves
expected   the entries that a broker makes of records
pool       entries read ahead for the walk over the log
match      records of the log against entries
judge, check    entries that the walk did not meet, one by one
"""
