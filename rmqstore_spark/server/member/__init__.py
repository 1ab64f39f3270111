"""`rmqstore member`: a process that is a member of a DLedger group, and serves nobody else.

config       its keys, which are those of RocketMQ's brokers
process      runs it from start to shutdown
"""
