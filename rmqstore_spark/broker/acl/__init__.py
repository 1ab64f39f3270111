"""Accounts of clients, as RocketMQ's `plain_acl.yml` describes them.

addresses  from where clients may connect without an account
accounts   the accounts, the rights that there are, and what each account may do
files      reads the files with them, again when they change
gate       lets through what an account may ask, before any handler sees it

From outside it imports `remoting`, `engine.queue_reader`, `layout`, `base` and `errors`.
"""
