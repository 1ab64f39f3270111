"""Dispatches records of the log to queues and index.

dispatcher   dispatches, in the caller's thread or its own, a few blocks behind the log; and
             flushes queues, index and checkpoint
jobs         what is dispatched: blocks of records that are in the log
queues       writes ConsumeQueues: where each begins and ends
queue_files  the files of the ConsumeQueues
indexes      writes IndexFiles
"""
