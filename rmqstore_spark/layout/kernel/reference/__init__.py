"""The kernel's loops in NumPy and Arrow: what the compiled kernel is tested against.

`plain` gathers them under the names that the compiled kernel has; the other modules hold the loops
over records, blocks, properties, hashes and index chains.
"""
