"""Options of `format("rmqstore")`.

option       what an option is
table        the options of reading, each named in one place
connection   the options for store processes, shared with writing
values, positions    what the text of an option means
parsing      from Spark's texts to checked options
"""
