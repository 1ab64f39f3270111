"""State that a store keeps beside its log.

topics           reads and writes `config/topics.json`
deleted_topics   remembers deleted topics, so that recovery does not bring them back
checkpoint       holds the times up to which log, queues and index are flushed
store_id         identifies the store
"""
