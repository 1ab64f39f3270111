"""What administrators and the slaves of a broker ask.

topics    topics: created, changed, deleted, and how far they are
groups    consumer groups: created, changed, deleted, and how far they are; their offsets reset
messages  messages by their place in the log, and by key
tables    the tables that slaves copy
cleaning  files that are removed because somebody asks for it
state     figures of the broker, with its `rates` and `days`, and its configuration

From outside it imports what `broker` does, and `reader` for keys.

"""
