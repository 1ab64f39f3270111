"""Puts messages: from a block to its outcome.

puts          handles a put, from its block to its answer
group_commit  puts single messages of many threads as a group
appender      assigns offsets to records and appends them, under one lock
store_time    assigns storeTimestamps, which never go back
"""
