"""Recovers a store when it is opened for writing.

recover            runs the steps in order, and refuses to cut damage unless told to
log_files          looks over the files of the log, and repairs what a crash left of them
queue_survey       finds plain queues, with a few system calls for each
log_end            decides where the log ends; `engine.log.cut` cuts what follows
unpublished        finds the block of a commit that was killed, which need not be kept
log_reach          compares that with how far the log once reached, as the rest of the store tells
clean_close        records what a store holds, and reads what was recorded
configuration      checks all files of `config/` before anything else; compares the offsets of
                   consumer groups with the ends of their queues
queue_check        checks how far the queues are complete, and which are missing
queues_and_index   makes queues and index agree with the log; has the settings of a recovery
redispatch         writes missing queue entries
reindex            surveys the index, and inserts missing keys
member             the same for a member of a DLedger group, whose driver has recovered the log
old_log            closes the log that a store had before it became a member
whole_batches      finds the part of a Spark batch whose leader did not finish it
summary            reports what recovery found and did
"""
