"""Turns queue entries and records into rows, a batch at a time.

read        reads a split through queue entries: selections, their records, batches
scan        reads a split of the log, without queues
pulled      turns the records that a broker sent into rows
selection   selects the entries of a queue by tag
merge       merges several queues in the order in which the broker stored their messages
decoder     checks, filters and decompresses records, and turns them into rows
"""
