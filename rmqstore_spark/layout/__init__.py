"""The on-disk format, both directions: bytes to NumPy and Arrow and back; no files, no Spark."""
