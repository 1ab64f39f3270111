"""A store process as a broker (`rmqstore_spark.broker`), without a broker of RocketMQ's.

broker       a broker in this process, and requests to it
conversation plays what real clients and a real broker said; records reads what brokers give
halves       requests of producers of transactional messages
accounts     accounts, and requests that are signed
real_client, cpp_client, node/   RocketMQ's C++ and Node clients, in processes of their own

Tests: test_conversations and test_recorded compare answers with recorded ones; test_clients runs
RocketMQ's clients, and test_clients_differ asks as each of them does.
test_sending, test_consuming (with test_waiting_pulls), test_transactions (with test_ending) and
test_administration (with test_mqadmin) ask what clients and administrators ask; test_accounts,
test_transaction_accounts, test_account_files and test_identity concern accounts; test_ports,
test_idle_connections, test_registering and test_handler_thread the process itself.
"""
