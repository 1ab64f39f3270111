"""Writes the CommitLog.

placement       finds places for records, none of which spans two segments
segment_files   creates segments at full length, ahead of time
open_segments   writes into segments through a bounded number of open files, and flushes them
commitlog       appends records; hides a block of a commit, and publishes it
published_end   where it ends for readers; `published_log` reads it up to there
flush           flushes the log, once for all waiting puts
flush_mark      writes down how far it is flushed, which a start compares with what it finds
cut             cuts the log at an offset; `aside` sets all of it aside
"""
