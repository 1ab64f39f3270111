"""Turns queue entries and records into rows, a batch at a time.

splits      defines the pieces that tasks read: ranges of queues, or of the log
read        reads a split through queue entries
scan        reads a split of the log, without queues
pulled      turns the records that a broker sent into rows
selection   selects the entries of a queue by tag, and cuts them into batches
merge       merges several queues in the order in which the broker stored their messages
fetch       reads the records of selected entries into memory
decoder     checks and filters records, and turns them into rows
unpack      decompresses bodies within a memory limit
"""
