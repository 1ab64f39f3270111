"""State that a store keeps beside its log.

config_file        a file of `config/` with its backup, and a table in it that many can change
topics             reads and writes `config/topics.json`
consumer_offsets   moves the offsets of consumer groups in `config/consumerOffset.json`
groups             reads `config/subscriptionGroup.json`, and adds groups to it
followed           replaces a slave's tables by its master's, and deletes topics that it deleted
queue_ends         where queues end of which a member of a group never had a message
deleted_topics     remembers deleted topics, so that recovery does not bring them back
checkpoint         holds the times up to which log, queues and index are flushed
store_id           identifies the store
"""
