"""What consumers ask.

pulls          messages, from what the queues hold now
long_polling   holds requests until messages come, or their time is over
waiting_pulls  those that are held, by queue and tags
offsets        offsets of queues and groups, and those that consumers report
locks          locks of queues for consumers in order
send_back      messages taken back: to be consumed again, or given up

The store under them is `engine.queue_reader`.
"""
