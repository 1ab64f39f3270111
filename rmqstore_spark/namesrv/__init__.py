"""The name server: it tells clients which brokers have a topic. It knows no store.

config         its configuration, under RocketMQ's names
registration   a broker's registration: header and body, plain or compressed
brokers        the tables of brokers: names, clusters, who is alive, and the topics of each
tables         all of these and the filter servers; routes from them, kept until they change
processor      requests to tables, and to answers
administration requests of administrators: key-value configuration, the name server's own
process        `rmqstore namesrv`: runs it from start to end

From outside it imports `remoting`, `engine.config` (keys, properties files), `files` (configuration
files, `durable`, `local`), `layout.constants`, `base` and `errors`. It behaves as RocketMQ 4.9.8
(NamesrvController, DefaultRequestProcessor, RouteInfoManager, KVConfigManager); docs/namesrv.md
says where it does not.
"""
