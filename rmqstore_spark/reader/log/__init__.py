"""Reads the CommitLog.

commitlog   reads bytes and records at given physical offsets of the log's segments
walk        walks over the log record by record, without queues
end         finds the end of a store's log
"""
