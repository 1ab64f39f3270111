"""Messages for tests.

traffic      messages that producers might have sent, a batch at a time
blocks       blocks of encoded records
batches      batches as Spark's tasks stage and commit them
stopped      a commit that stops on its way
strategies   hypothesis strategies for the values in messages and records
spans        spans of texts, as they lie in a record
"""
