"""What administrators and the slaves of a broker ask.

topics    topics: created, changed, deleted, and how far they are
groups    consumer groups: created, changed, deleted, and how far they are; their offsets reset
messages  messages by their place in the log, and by key
state     the broker itself: figures, configuration, the tables that slaves copy, and cleaning

From outside it imports what `broker` does, and `reader` for keys.

"""
