"""The reference of the compiled kernel, in NumPy and Arrow.

plain      all functions, under the names of the compiled kernel
parse      reads and checks the fields of records, and finds the messages in the body of a batch
spans      copies, compares and splits spans of bytes
hashing    hashes texts as Java does, and links keys into the chains of an index; hashes that
           tell contents apart, of spans and of records
block      checks, numbers and stamps blocks of records to be stored
entries    splits queue entries, and picks some of them
encode     writes records from columns
requests   reads requests to send messages, as their frames came
sends      writes the records of their messages
answers    writes the answers to them
members    checks and writes entries of a group
"""
