"""Spark's batches: staged by tasks, committed once.

staging           manages the stages of a store: who may begin, commit and abort them
stage             holds the records of one task attempt beside the log
staged_records    the index of a stage: where its records lie, and their queues and keys
commit            commits a batch: appends its stages to the log, all or nothing
batch_block       writes a batch as one block, visible as a whole or not at all
marker, markers   write and read the record that marks a commit
ledger            knows which batches are committed; `committed` describes one
owners            decides which client owns a stage or a batch
batches           combines all of this for the store
"""
