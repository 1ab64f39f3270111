"""The configuration of a store, under RocketMQ's names.

properties_file   reads and formats files of `key = value` lines
broker_keys       keys of a broker that mean something else here, or nothing
key               declares a key as the field that holds its value; reads, checks and writes values
table             all keys; those of the network are in `network_keys`, those that protect it in
                  `protection_keys`, those of a DLedger group in `group_keys`
store_config      `StoreConfig`: from a file, the environment or arguments
"""
