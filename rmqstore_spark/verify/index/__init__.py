"""Verifies the IndexFiles.

bounds   lists the files, and finds how many slots and keys each holds
unit     checks a file by itself: header, slots, chains
keys     hashes the keys under which a broker indexes records
line     reads the entries of all files as one sequence
match    compares the keys of the log with these entries, in one pass
check    checks the entries that no record matched
"""
