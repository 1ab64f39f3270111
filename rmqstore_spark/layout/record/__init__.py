"""Decodes and encodes the records of a CommitLog (`docs/format.md`, "A CommitLog record").

format       the bytes of a record (start here): decodes records into NumPy columns
properties   splits, finds and encodes the properties of records
columns      builds the Arrow columns of rows from a batch of records
dispatches   finds the additional queues (light queues) of a record
encode       encodes columns as records
addressee    REAL_TOPIC and REAL_QID: the queue of a message that waits in another one
half         makes half messages, and what is stored when they are ended
block        checks, numbers and stamps encoded records on their way into a store
digest       tells the content of records from any other, in any order
delayed      moves messages with a delay level to their schedule queues, and back when due
fingerprint  tells two records apart without their bodies
extent       how far a Spark batch reaches, as its first record says
retarget     copies records to another topic and queue
"""
