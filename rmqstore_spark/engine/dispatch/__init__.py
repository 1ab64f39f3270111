"""Dispatches records of the log to queues and index.

dispatcher   dispatches, in a thread or the caller's, at most one batch behind the log
queues       writes ConsumeQueues: where each begins and ends
queue_files  the files of the ConsumeQueues
indexes      writes IndexFiles
flush        flushes queues, index and checkpoint
"""
