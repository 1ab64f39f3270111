"""Accounts of clients, as RocketMQ's `plain_acl.yml` describes them.

rights         what may be done with a topic or a group
addresses      from where clients may connect without an account
accounts       the accounts, and what each may do
accounts_file  reads them
files          the files of a broker: loads them, again when they change
gate           lets through what an account may ask, before any handler sees it

From outside it imports `remoting`, `engine.queue_reader`, `layout`, `base` and `errors`.
"""
