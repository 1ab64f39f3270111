"""Opening a store: what a crash left is found and mended.

clean_close    what the last close wrote down
log_end        where the log ends
queue_survey, queue_check    how far the queues hold
recover        the steps, in order; it decides what is cut (`engine.log.cut` cuts)
queues_and_index, redispatch, reindex    queues and index brought up to the log
settings, summary    what it must know, and what it did
"""
