"""Appends puts to the log.

puts          checks a block, appends it, and waits until it is durable
group_commit  puts single messages of many threads as a group
append_lock   the lock of all that changes the log
store_time    assigns storeTimestamps
appender      assigns offsets to records and appends them, before the block of a commit, if
              one is being written (`batches.batch_block`)
commit        a commit that writes its block, and what it holds up
durability    waits for the disk and for slaves, of which it knows what each has
replica       the other way into the log: bytes of a master's log
stamped       checks these bytes, and finds where Spark batches begin and end in them
copied        puts records of such a log into topics, queues and index
applier       the same for what a DLedger group has committed; `member_appender` proposes to it,
              and `member_durability` waits for it; `later_puts` are told of it later
replica_deletions  deletes topics at a slave that its master has deleted
"""
