"""The Spark data source: `format("rmqstore")`, batch and streaming.

    source       what Spark asks first
    options/     options, parsed and checked
    tables       a catalog table's options
    schema       the columns
    stores, resolve    stores and queues, and offsets in them
    batch        a batch query
    stream/      a stream, with its `offsets`
    partitions, scanned    what a task reads
    failures     errors as a user of Spark sees them
    sink/        writing

Nothing is imported here: Spark starts a Python process per query, and each takes only the
modules that its step needs.
"""
