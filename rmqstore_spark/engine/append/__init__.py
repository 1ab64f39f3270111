"""Puts messages: from a block to its outcome.

puts         handles a put, from its block to its answer
combiner     combines single messages of many threads
admission    decides whether a store accepts a block
appender     assigns offsets to records and appends them, under one lock
store_time   assigns storeTimestamps, which never go back
"""
