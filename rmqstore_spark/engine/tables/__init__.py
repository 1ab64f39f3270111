"""What a store remembers beside its log.

topics           `config/topics.json`
deleted_topics   topics that were deleted
checkpoint       up to when files are on disk
"""
