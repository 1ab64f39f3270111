"""RocketMQ's clients and Spark's on one store process: what each costs the other's calls.

figures   each kind of call, alone and beside what the other protocol does at full speed
calls     calls that begin at fixed times, and how long each takes
store     the store process
loads     processes that keep a store process busy
"""
