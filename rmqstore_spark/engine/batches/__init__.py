"""Spark's batches: staged by tasks, committed once.

staging           manages the stages of a store: who may begin, commit and abort them
stage             holds the records of one task attempt, as portions
held, spilled     a portion in memory, and one in files beside the log
spares            keeps the files of stages that are gone, for the next stages
staged_records    the records of a block or portion, with their queues and keys
commit            the order of a commit: check, write, flush, publish, dispatch. The batch becomes
                  visible in `CommitLogWriter.publish` (`engine.log.commitlog`)
batch_block       the block of a commit: numbers its records, writes it hidden, publishes it
marker, markers   write and read the record that marks a commit
ledger            knows which batches are committed; `committed` describes one
owners            decides which client owns a stage or a batch
batches           combines all of this for the store
"""
