"""Spark's batches: staged by tasks, committed once.

staging           manages the stages of a store: who may begin, commit and abort them
stage             holds the records of one task attempt, as portions
held, spilled     a portion in memory, and one in files beside the log
staged_records    the records of a block or portion, with their queues and keys
batch_block       the block of a commit: numbers its records, writes it hidden, publishes it
marker, markers   write and read the record that marks a commit, and says whose it is
ledger            knows which batches are committed
writing           the order of a commit: place, write, flush, publish, dispatch. The batch becomes
                  visible in `CommitLogWriter.publish_reserved` (`engine.log.commitlog`)
member_writing    the same for a member of a DLedger group: proposes a batch as a run of entries
batches           all of this for the store
"""
