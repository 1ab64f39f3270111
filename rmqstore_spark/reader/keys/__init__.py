"""Finds messages by key.

index    decides which IndexFiles of a store can be trusted, and looks up keys in them
search   finds the records that have a key, through the index or in the log
read     reads the messages found, as the queues hold them, for one split
"""
