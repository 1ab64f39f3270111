"""Defines and checks the options of `format("rmqstore")`.

option       declares an option as the field that holds its value, and reads what a user sets
table, sink_table    the options of reading and of writing, in a class for each use
connection   the options for store processes, shared by both
values, positions    parse an option's text
parsing      checks a query's options against each other; `sink.options` those of a write
"""
