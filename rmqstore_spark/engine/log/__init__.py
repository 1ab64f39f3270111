"""Writes the CommitLog.

placement       finds places for records, none of which spans two segments
segment_files   creates segments at full length, ahead of time
open_segments   writes into segments through a bounded number of open files, and flushes them
commitlog       appends records, and publishes blocks
reserved        the block of a commit, written beyond the log's end while others append before it
published_end   where it ends for readers; `published_log` reads it up to there
flush           flushes the log, once for all waiting puts, and writes down how far
member_log      the log of a member of a DLedger group, which the group writes
cut             cuts the log at an offset, or sets all of it aside
"""
