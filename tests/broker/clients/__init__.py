"""Real clients of RocketMQ, live and recorded.

conversation   plays what real clients and a real broker said; records reads what brokers give
real_client, cpp_client, node/   RocketMQ's C++ and Node clients, in processes of their own

test_conversations and test_recorded compare answers with recorded ones; test_clients runs
RocketMQ's clients, and test_clients_differ asks as each of them does.
"""
