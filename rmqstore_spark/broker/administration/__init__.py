"""Answers administrators, and the slaves of a broker.

topics    topics: created, changed, deleted, and how far they are; who is connected
groups    consumer groups: created, changed, deleted, and how far they are; their offsets reset
changes   makes their changes, all that have gathered with one write
inventory single topics and groups, system topics, and connected producers
messages  messages by their place in the log, and by key
tables    the tables that slaves copy
cleaning  files that are removed because somebody asks for it
unsupported  why some requests are refused
state     figures of the broker, with its `rates` and `days`, and its configuration

From outside it imports what `broker` does, and `reader` for keys.
"""
