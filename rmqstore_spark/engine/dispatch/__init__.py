"""Dispatches records of the log to queues and index.

appended     blocks in the log that wait to be dispatched
dispatcher   the thread that dispatches, close behind the log
queues       writes ConsumeQueues: where each begins and ends
queue_files  the files of the ConsumeQueues
indexes      writes IndexFiles
flush        flushes queues, index and checkpoint
"""
