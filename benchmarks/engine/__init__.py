"""A store in this process, or in its own: puts, decoding, expiry, recovery."""
