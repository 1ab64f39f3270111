"""Removes old segments from the front of the log, and copies them to an archive before.

rule         decides which segments expire: a pure function
clock        the time that the rule uses
segments     lists the segments that may expire, and the times of their messages
needed       knows which segments must stay for now; `uses`, which ones clients are reading
archive      copies segments, queues and index files to another file system; `upload` copies a file
expiry       the thread that does all this

Uses `log` and `dispatch` for the files, `batches` for the ledger, which must know the commits whose
markers expire, and `transactions` and `delay` for the messages that wait.
"""
