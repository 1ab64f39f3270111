"""The name server: it tells clients which brokers have a topic. It knows no store.

config         its configuration, under RocketMQ's names
registration   a broker's registration: header and body, plain or compressed
brokers        the tables of brokers: names, clusters, and who is alive
topics         the table of topics, with the queues of each broker
answers        encoded answers that are kept until what they say changes
tables         all of these and the filter servers; routes from them
kvconfig       configuration by namespace and key, kept in a file
processor      requests to tables, and to answers
administration requests of administrators: key-value configuration, the name server's own
process        `rmqstore namesrv`: runs it from start to end

From outside it imports `remoting`, `engine.config` (keys, properties files), `files.durable`,
`layout.fastjson`, `layout.constants`, `base` and `errors`. It behaves as RocketMQ 4.9.8
(NamesrvController, DefaultRequestProcessor, RouteInfoManager, KVConfigManager); docs/namesrv.md
says where it does not.
"""
