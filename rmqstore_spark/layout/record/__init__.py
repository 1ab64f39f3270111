"""Decodes and encodes the records of a CommitLog (`docs/format.md`, "A CommitLog record").

format       decodes a batch of records into NumPy columns, and follows the records of a log
properties   splits, finds and encodes the properties of records
columns      builds the Arrow columns of a row from a batch of records
dispatches   finds the additional queues (light queues) of a record
encode       encodes columns as records
block        checks, numbers and stamps encoded records on their way into a store
"""
