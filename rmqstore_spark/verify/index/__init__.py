"""Verifying the IndexFiles.

bounds      which files there are, and how large each is
unit        a file by itself: header, slots, chains
keys        the keys under which a broker indexes records
span_hash   Java's hash of many keys
line, match     the entries of all files against the keys of the log, in one pass
check       entries that the walk over the log did not meet
"""
