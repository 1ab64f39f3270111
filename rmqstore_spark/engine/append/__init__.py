"""Putting messages: from a block to its outcome.

admission    may it be put now, and to these topics
rows         messages given as columns
puts         a put from its block to its answer
combiner     single messages of many threads, put together
store_time   storeTimestamps never go back
appender     numbers are given out and records appended, under one lock
"""
