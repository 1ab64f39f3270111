"""What RocketMQ's consumers ask.

pulls        answers requests for messages, from what the queues hold now
waiting_pulls  the requests that wait, by queue and tags
consuming    lets them wait until messages come
offsets      answers questions about offsets, and takes those that consumers report
saved_reports  answers reports when they are on disk
locks        locks queues for consumers in order
send_back    takes messages back: to be consumed again, or given up

`service` gives them their requests. The store under them is `engine.queue_reader`.
"""
