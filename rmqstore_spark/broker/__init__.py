"""A store process as a broker: RocketMQ's producers and consumers talk to it.

catalog      the topics and groups, and which of them clients may create
sends        reads requests to send, and batches
producing    stores what producers send: one block, one append, one flush for all that has gathered
new_topics   creates the topics of sends, all that gather with one write
new_groups   does the same for the groups that consumers name
statistics   counts what they send, and what consumers get
relaying     passes on replies to requesters, and questions to consumers
heartbeat    reads what clients say of themselves, and their subscriptions
clients      which connections belong to which groups
notices      tells the members of groups that others have come or gone
transactional ends the transactions of producers, and asks for their outcome
consumers/   what consumers ask: messages, offsets, locks, messages sent back
administration/ what administrators and slaves ask
acl/         accounts, and what each may ask
service      gives each request to its handler
registering  tells the name servers about the topics
protection   what protects the port: accounts and TLS
fair_queue   jobs of several owners, which take turns
worker       a thread that handles all requests that have gathered
handler_thread one that handles single requests in turn
runner       the thread of the event loop with all of this

From outside it imports `remoting`, `engine`, `reader`, `layout`, `produce.records`, `secretfiles`,
`types`, `errors` and `printable`.
It behaves as RocketMQ 4.9.8; docs/broker.md says where it does not.
"""
