"""A store process as a broker (`rmqstore_spark.broker`), without a broker of RocketMQ's.

broker         a broker in this process, and requests to it
clients/       real clients, their recorded conversations, and in what they differ
protection/    accounts, and whom it accepts
transactions/  half messages, their ends and checks

Tests here: test_sending and test_put_statuses, test_consuming (with test_pulling,
test_waiting_pulls and test_saved_reports) and test_administration (with test_mqadmin and
test_statistics) ask what clients and administrators ask; test_ports, test_idle_connections,
test_registering, test_relaying, test_handler_thread and test_logging concern the process itself.
"""
