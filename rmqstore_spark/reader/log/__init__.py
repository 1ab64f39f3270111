"""The CommitLog, read in its own order.

commitlog   the log's segments: ranges of bytes, records at given places
walk        record by record, without queues
end         where the log of a store ends
"""
