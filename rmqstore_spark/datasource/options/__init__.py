"""Defines and checks the options of `format("rmqstore")`.

option       what an option is, and how a table of options is read
table, sink_table    the options of reading and of writing
connection   the options for store processes, shared by both
values, positions    parse an option's text
parsing      turns Spark's texts into the checked options of a query
"""
