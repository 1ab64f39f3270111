"""The store directory over any file system: listing, ranges of bytes, segments, configuration.

This floor knows where things lie in a store (`docs/format.md`, "A store directory"), and nothing of
what a message means. Everything is read-only.
"""
