"""Removes old segments from the front of the log, and copies them to an archive before.

rule         decides which segments expire: a pure function, and the clock that it uses
segments     lists the segments that may expire, and knows which of them must stay for now
archive      copies segments, queues and index files to another file system
expiry       the thread that does all this

Uses `log` and `dispatch` for the files, `batches` for the ledger, which must know the commits whose
markers expire, and `transactions` and `delay` for the messages that wait.
"""
