"""Decodes and encodes the records of a CommitLog (`docs/format.md`, "A CommitLog record").

format       the bytes of a record (start here): decodes records into NumPy columns, and tells how
             far a Spark batch reaches
properties   splits, finds and encodes the properties of records
columns      builds the Arrow columns of rows from a batch of records
dispatches   finds the additional queues (light queues) of a record
encode       encodes columns as records
addressee    copies records to other queues, and finds where those go that wait in another one
half         makes half messages, and what is stored when they are ended
block        checks, digests, numbers and stamps encoded records on their way into a store
single       a record that is stored alone
filler       records that fill up unused room in the log
delayed      the delay levels; moves delayed messages to their schedule queues, and back when due
"""
