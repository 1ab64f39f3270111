"""The pages as HTML, from plain objects.

frame     what they share: the document, tables, facts, links, numbers and times
overview  a store: what it does, its role, its disk, what failed
topics    topics, and the queues of one
groups    consumer groups, and the progress and the consumers of one
commits   the batches of Spark, by query
messages  the message browser
log       warnings and errors of the process
"""
