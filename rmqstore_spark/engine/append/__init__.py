"""Appends puts to the log.

puts          checks a block, appends it, and waits for the flush
group_commit  puts single messages of many threads as a group
appender      assigns offsets to records and appends them, under one lock (`batches.batch_block`
              assigns those of a commit)
store_time    assigns storeTimestamps, which never go back
"""
