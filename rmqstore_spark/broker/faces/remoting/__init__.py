"""The face for RocketMQ's remoting clients: their frames and codes to `core`'s plain values.

table        ONE row a request code: who may ask, where it is handled, how it is read and answered
row          what such a row is
rights       what accounts need
headers      reads requests
heartbeats   reads what clients say of themselves
results      makes answers for clients
reports      makes answers for administrators
refusals     RocketMQ's codes for refusals
parts        what the rows reach: `core`, and the next two
membership   takes heartbeats
relaying     passes on replies to requesters, and questions to consumers
telling      tells clients what they did not ask for
lanes/       threads beside the event loop, and requests that gather
service      gives each request to the handler of its row
registering  tells the name servers about the topics

A new code is a new row of the table, and what it needs to be read and answered.
"""
