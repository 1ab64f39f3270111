"""Clients of name servers and brokers, for a thread that waits for their answers.

    pipe         `RemotingPipe`: a connection with many requests on the way, plain or TLS, signed
    server_group  `ServerGroup`: servers of which any can answer, such as a master and its slaves
    routes       `NameServers`: which brokers have a topic, and where they are;
                 `RegisteredBroker`: where one is now; `PublishRoutes`: those that take messages
    broker       `BrokerClient`: topics, offsets, consumer groups and messages of one broker
    answers      reads what brokers answer; nothing in it is trusted
    pulling      `QueuePuller`: pulls a range of a queue, with several requests on the way
    sending      `MessageSender`: sends messages, and again where a broker fails

They speak RocketMQ's protocol, with RocketMQ's processes and ours alike. From outside they import
`remoting`, `wire.endpoint`, `layout.constants`, `client.contact`, `errors` and `base.printable`.
"""
