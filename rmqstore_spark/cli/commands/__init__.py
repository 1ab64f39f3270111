"""The commands of `rmqstore`: a module each, or one for a few that belong together.

A new command is a function here, and a line in `cli.app`.
"""
