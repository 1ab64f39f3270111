"""The commands of `rmqstore`: one module each, or one for a few that belong together.

To add a command, write a module here, and name it in the table of `cli.app`.
"""
