"""The configuration of a store, under RocketMQ's names.

key            what a key is: name, type, range, meaning
store_config   the keys, and `StoreConfig`
broker_keys    keys of a broker that mean something else here, or nothing
properties_file    files of `key = value` lines
"""
