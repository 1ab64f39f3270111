"""The face for RocketMQ's remoting clients: their frames and codes to `core`'s plain values.

table        ONE row a request code: who may ask, where it is handled, how it is read and answered
row          what such a row is, and the codes for refusals
rights       what accounts need
headers      reads requests
results      makes answers for clients
reports      makes answers for administrators
membership   reads and takes heartbeats, and creates the groups that clients name
relaying     passes on replies and questions, and tells clients what they did not ask for
lanes/       threads beside the event loop, and requests that gather
service      gives each request to the handler of its row
registering  tells the name servers about the topics

A new code is a new row of the table, and what it needs to be read and answered.
"""
