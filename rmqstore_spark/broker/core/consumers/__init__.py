"""What consumers ask.

pulls          messages, from what the queues hold now
waiting_pulls  those who wait for messages, by queue and tags
offsets        offsets of queues and groups, and those that consumers report
locks          locks of queues for consumers in order
send_back      messages taken back: to be consumed again, or given up

The store under them is `engine.queue_reader`.
"""
