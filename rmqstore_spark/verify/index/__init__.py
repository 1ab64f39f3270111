"""Verifies the IndexFiles.

files    finds the files, and reads the entries of all of them as one sequence
match    compares the keys of the log with these entries, in one pass
check    checks each file by itself, and the entries that no record matched
"""
