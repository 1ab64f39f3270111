"""Reads and builds IndexFiles (`docs/format.md`, "An IndexFile").

hashing    computes Java's hash of a key
format     decodes and encodes header, slots and entries, and follows a chain
build      inserts keys, in batches
geometry   infers the number of slots, which no file records
"""
