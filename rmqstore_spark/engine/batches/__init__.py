"""Batches of Spark: staged by tasks, committed once.

stage, staging    what tasks have written and nobody has committed
staged_records    what is known of staged records
batch_block       a batch as one block of the log, visible whole or not at all
commit            from stages to the log
marker, markers   the record that marks a commit
ledger            which batches are committed
owners            whose stages and batches they are
batches           all of it, as the store uses it
"""
