"""The faces of a broker: how clients of one kind ask for what `core` decides.

remoting/  RocketMQ's remoting clients of 4.x, and those of 5.x that speak its protocol
"""
