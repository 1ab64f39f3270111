"""An IndexFile (`docs/format.md`, "An IndexFile").

hashing    Java's hash of a key
format     header, slots and entries as bytes; following a chain
build      inserting keys, a batch at a time
geometry   how many slots a file has, which nothing records
"""
