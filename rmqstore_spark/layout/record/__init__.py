"""A CommitLog record (`docs/format.md`, "A CommitLog record").

format       a record's bytes: `decode_records` gives a batch of them as NumPy columns
spans        ranges of a buffer, and Arrow arrays made of them without a Python object each
properties   the property map of a record
columns      the columns of a row, built from a batch of records
encode       columns to records
block        encoded records on their way into a store: checked, numbered, stamped
"""
