"""Defines and checks the options of `format("rmqstore")`.

option       declares an option as the field that holds its value, and reads what a user sets
table, sink_table    the options of reading and of writing, in a class for each use
connection   the options for store processes, shared by both
values       parses an option's text, positions included
parsing      checks the options of a query, or of a write, against each other
"""
