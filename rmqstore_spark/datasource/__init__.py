"""The Spark data source: `format("rmqstore")`, batch and streaming.

Nothing is imported here: Spark starts a Python process per query, and each takes only the
modules that its step needs.
"""
