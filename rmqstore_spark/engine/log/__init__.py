"""Writing the CommitLog.

placement       where records go: none straddles two segments
segment_files   the files, made at full length ahead of their need
commitlog       appending bytes
flush           bringing them to disk, for all who wait at once
cut             ending the log at a place
"""
