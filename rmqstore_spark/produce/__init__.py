"""What a producer's client does to a message before it is stored.

properties   the properties that a client adds, joined as RocketMQ joins them
uniq_key     UNIQ_KEY, the id that a client gives each message
"""
