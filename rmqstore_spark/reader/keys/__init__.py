"""Looking messages up by key.

index    the IndexFiles of a store
search   the records that have a key
split    such a search as a split that a task runs
"""
