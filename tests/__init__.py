"""The tests; their folders mirror the package. `rocketmq` needs RocketMQ itself."""
