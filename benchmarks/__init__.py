"""Measures speed and memory on stores that it makes for that: `make bench`.

Each module measures one thing, and says as a `Figure` what came out, against what, and what the aim
was. A ratio compares two things that were measured in the same run, or a figure of RocketMQ's own.
"""
