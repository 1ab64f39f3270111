"""RocketMQ's remoting protocol, for both ends of a connection. It knows no topic and no store.

codes        codes of requests and answers
command      a request or an answer, and its header as JSON or binary
frames       bytes to commands, whatever pieces they arrive in
fields       reads the fields of a header, and names those that are missing or wrong
bodies       bodies: JSON in fastjson's dialect, and texts that were compressed
limits       how much a connection, and a server, may hold, and for how long
addresses    `host:port`, parsed and as text
calls        requests of this side that wait for their answers
peerlog      log lines about other ends, a few a minute
connection   a connection: takes all commands that have arrived, counts what they hold until they
             are finished; asks, and waits
dispatch     gives each request to the handler of its code
server       listens, and ends connections that are idle, slow or too many
client       connects, and asks

`codes` to `bodies` are pure: bytes in, values out. From outside it imports `layout.fastjson`,
`errors` and `printable`. The format is that of 4.9 (RemotingCommand, NettyDecoder).
"""
