"""From the log to queues and index.

dispatcher   the thread that does it, a batch behind the log at most
queues       ConsumeQueues
indexes      IndexFiles
"""
