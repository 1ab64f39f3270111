"""The commands of `rmqstore`: one module each, or one for a few that belong together.

To add a command, write a function here, and add a line to `cli.app`.
"""
