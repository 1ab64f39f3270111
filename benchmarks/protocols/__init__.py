"""Clients of RocketMQ and of Spark on one store process: what each cost the others' calls.

figures   each kind of call, alone and beside what the others do at full speed
calls     calls that begin at fixed times, and how long each takes
store     the store process
loads     processes that keep a store process busy
"""
