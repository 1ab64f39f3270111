"""Adds what a producer's client adds to a message before it is stored.

properties   joins the properties of a message as RocketMQ joins them
uniq_key     makes UNIQ_KEY, the id that a client gives each message
"""
