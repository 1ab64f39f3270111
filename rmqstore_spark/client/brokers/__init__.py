"""Clients of name servers and brokers, for a thread that waits for their answers.

    pipe         `RemotingPipe`: a connection with many requests on the way, plain or TLS, signed
    server_group  `ServerGroup`: servers of which any can answer, such as a master and its slaves
    routes       `NameServers`: which brokers have a topic, and where they are;
                 `RegisteredBroker`: where one is now
    broker       `BrokerClient`: topics, offsets, consumer groups and messages of one broker
    introduction makes a consumer group known to a broker, as a consumer does
    answers      reads what brokers answer; nothing in it is trusted
    pulling      `QueuePuller`: pulls a range of a queue, with several requests on the way
    publishing   `PublishRoutes`: the brokers that take messages of a topic
    avoided      `AvoidedBrokers`: those that failed or were slow, and get no messages for a while
    sending      `MessageSender`: sends messages, and again where a broker fails

They speak RocketMQ's protocol, with RocketMQ's processes and ours alike. From outside they import
`remoting`, `wire.endpoint`, `layout.constants`, `client.pauses`, `client.contact`, `client.names`,
`errors` and `printable`.
"""
