"""Stores for tests.

golden       what RocketMQ wrote, and what RocketMQ itself says is in it
expected     rows that a golden store must give, made of RocketMQ's reports alone
keys         which of its records have a key
records      its records as Arrow batches, and as bytes
recovering   copies of golden stores, opened and closed as the writer does it
storing      small stores that tests write into
storebuilder complete stores of any size, laid out as by a broker
sparse       stores of any length that take next to no disk
pages        what the page cache holds of their files
"""
