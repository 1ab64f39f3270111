"""The reference of the compiled kernel, in NumPy and Arrow.

plain      all functions, under the names of the compiled kernel
parse      reads the fixed fields of records
spans      copies, compares and splits spans of bytes
hashing    hashes texts as Java does
block      checks, numbers and stamps blocks of records to be stored
entries    splits queue entries, and picks some of them
digest     hashes that tell contents apart, of spans and of records
encode     writes records from columns
batch      finds the messages in the body of a batch
index      links keys into an index's chains
"""
