"""The commands of `rmqstore`: one module each, or one for a few that belong together.

To add a command, write a module here, import its function in `cli.app`, and add it to the list
there.
"""
